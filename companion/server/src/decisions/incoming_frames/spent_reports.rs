//! Reports of requests that filters admitted by credit, whose memory is used again.
//!
//! A report has two messages with up to twenty texts. Decoding it into one that was handled before allocates nothing.

use penstock_wire::{Admitted, Running};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Reports of each kind whose memory is kept: those of a few frames.
const KEPT_MAX: usize = 64;
/// The number of the field with the request, and in that the number of the registration.
const RUNNING: u32 = 1;
const REGISTER: u32 = 1;
/// The number of the field with the end.
const COMPLETED: u32 = 3;

/// Handled reports, as empty as new ones whose messages are present.
#[derive(Debug, Default)]
pub(super) struct SpentReports {
    /// With a registration and without an end.
    running: Vec<Admitted>,
    /// With both.
    ended: Vec<Admitted>,
}

impl SpentReports {
    /// Memory for the report in these bytes: merged with them, it equals a new one.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Admitted {
        let registers = content(bytes, RUNNING).is_some_and(|running| content(running, REGISTER).is_some());
        let spent = match content(bytes, COMPLETED) {
            _ if !registers => None,
            None => self.running.pop(),
            Some(_) => self.ended.pop(),
        };
        spent.unwrap_or_default()
    }

    /// Keeps the memory of handled reports.
    pub(super) fn keep(&mut self, reports: &mut Vec<Admitted>) {
        for mut report in reports.drain(..) {
            if !clear(&mut report) {
                continue;
            }
            let kept = match &report.completed {
                None => &mut self.running,
                Some(_) => &mut self.ended,
            };
            if kept.len() < KEPT_MAX {
                kept.push(report);
            }
        }
    }
}

#[cfg(test)]
impl SpentReports {
    pub(super) fn len(&self) -> usize {
        self.running.len() + self.ended.len()
    }
}

/// Empties a report and the messages in it, whose texts keep their memory. `false` if it has no registration.
fn clear(report: &mut Admitted) -> bool {
    let Admitted {
        running:
            Some(Running {
                register: Some(register),
                pool,
                endpoint,
                age_us,
                started,
                first_token,
                prefill_endpoint,
            }),
        credit,
        completed,
    } = report
    else {
        return false;
    };
    prost::Message::clear(register);
    pool.clear();
    endpoint.clear();
    prefill_endpoint.clear();
    (*age_us, *started, *first_token, *credit) = (0, false, false, 0);
    if let Some(completed) = completed {
        prost::Message::clear(completed);
    }
    true
}

/// The content at the head of these bytes, which begin with its length. `None` if they are malformed.
pub(super) fn delimited(mut bytes: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
    bytes.get(..length)
}

/// The content of a message's field that has a length. `None`: the message has no such field, or is malformed before it.
fn content(mut message: &[u8], number: u32) -> Option<&[u8]> {
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message).ok()?;
        if field == number && wire_type == WireType::LengthDelimited {
            return delimited(message);
        }
        skip_field(wire_type, field, &mut message, DecodeContext::default()).ok()?;
    }
    None
}
