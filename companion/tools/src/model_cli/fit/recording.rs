//! The requests of a file, with estimates of unknown first tokens.

use std::collections::BTreeMap;

use super::lines::Request;
use super::{Error, Source};

/// The most requests in a file.
const REQUESTS_MAX: usize = 1 << 26;

/// A request that ended. Times count from the first dispatch in the file.
pub(super) struct Ended {
    pub(super) dispatched_ms: f64,
    /// Time of the first token, known or estimated; the request decodes from then on.
    pub(super) first_ms: f64,
    /// The earliest and the latest possible time of the first token; both are `first_ms` if that is known.
    pub(super) first_min_ms: f64,
    pub(super) first_max_ms: f64,
    /// The time of the first token is known.
    pub(super) first_known: bool,
    pub(super) last_ms: f64,
    pub(super) input: f64,
    pub(super) output: f64,
    pub(super) endpoint: u32,
}

impl Ended {
    /// Time to the first token; 0 if it isn't known.
    pub(super) fn ttft_ms(&self) -> f64 {
        if self.first_known { self.first_ms - self.dispatched_ms } else { 0.0 }
    }
}

/// Reads the whole file. Times count from the first dispatch, because small numbers are the most precise.
pub(super) fn read(source: &mut Source<'_>) -> Result<Vec<Ended>, Error> {
    let mut requests: Vec<Ended> = Vec::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut start_ms = None;
    let mut first_tokens = (0.0, 0.0);
    loop {
        let full = requests.len() >= REQUESTS_MAX;
        let next = source.next(|line| {
            if full {
                return Err(format!("the file has more than {REQUESTS_MAX} requests"));
            }
            let request = Request::parse(line)?;
            let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let endpoint = match names.get(&*request.endpoint) {
                Some(endpoint) => *endpoint,
                None => *names.entry(request.endpoint.into_owned()).or_insert(count),
            };
            let start_ms = *start_ms.get_or_insert(request.dispatched_ms);
            let first_known = request.first_ms.is_some();
            let first_ms = request.first_ms.map_or(f64::NAN, |ms| ms - start_ms);
            Ok(Ended {
                dispatched_ms: request.dispatched_ms - start_ms,
                first_ms,
                first_min_ms: first_ms,
                first_max_ms: first_ms,
                first_known,
                last_ms: request.done_ms - start_ms,
                input: request.input,
                output: request.output,
                endpoint,
            })
        })?;
        let Some(request) = next else {
            break;
        };
        if request.first_known {
            first_tokens.0 += request.ttft_ms();
            first_tokens.1 += 1.0;
        }
        requests.push(request);
    }
    let mean_ttft_ms = if first_tokens.1 > 0.0 { first_tokens.0 / first_tokens.1 } else { 0.0 };
    estimate_first_tokens(&mut requests, mean_ttft_ms);
    Ok(requests)
}

/// Estimates the unknown times of first tokens. A server processes requests in order of their dispatch, so a first
/// token comes between those of the requests before and after, and about the mean time after its dispatch.
fn estimate_first_tokens(requests: &mut [Ended], mean_ttft_ms: f64) {
    let mut order: Vec<u32> = (0..).take(requests.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&requests[*a as usize], &requests[*b as usize]);
        a.endpoint.cmp(&b.endpoint).then(a.dispatched_ms.total_cmp(&b.dispatched_ms))
    });
    let (mut endpoint, mut min_ms) = (None, f64::NEG_INFINITY);
    for index in order.iter().map(|index| *index as usize) {
        let request = &mut requests[index];
        if endpoint.replace(request.endpoint) != Some(request.endpoint) {
            min_ms = f64::NEG_INFINITY;
        }
        if request.first_known {
            min_ms = min_ms.max(request.first_ms);
        } else {
            request.first_min_ms = min_ms.max(request.dispatched_ms).min(request.last_ms);
        }
    }
    let (mut endpoint, mut max_ms) = (None, f64::INFINITY);
    for index in order.iter().rev().map(|index| *index as usize) {
        let request = &mut requests[index];
        if endpoint.replace(request.endpoint) != Some(request.endpoint) {
            max_ms = f64::INFINITY;
        }
        if request.first_known {
            max_ms = max_ms.min(request.first_ms);
        } else {
            let max_ms = max_ms.min(request.dispatched_ms + 2.0 * mean_ttft_ms).min(request.last_ms);
            request.first_max_ms = max_ms.max(request.first_min_ms);
            let expected_ms = request.dispatched_ms + mean_ttft_ms;
            request.first_ms = expected_ms.clamp(request.first_min_ms, request.first_max_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_first_token_is_estimated_between_its_neighbours() {
        let request = |dispatched_ms: f64, first_ms: Option<f64>, endpoint: u32| Ended {
            dispatched_ms,
            first_ms: first_ms.unwrap_or(f64::NAN),
            first_min_ms: f64::NAN,
            first_max_ms: f64::NAN,
            first_known: first_ms.is_some(),
            last_ms: 1_000.0,
            input: 1.0,
            output: 9.0,
            endpoint,
        };
        let mut requests = [
            request(20.0, Some(60.0), 0),
            request(0.0, Some(30.0), 0),
            request(10.0, None, 0),
            request(10.0, None, 1),
            request(30.0, None, 0),
            request(995.0, None, 1),
        ];
        estimate_first_tokens(&mut requests, 100.0);
        let estimated = |index: usize| {
            let request = &requests[index];
            (request.first_min_ms, request.first_ms, request.first_max_ms)
        };
        assert_eq!(estimated(2), (30.0, 60.0, 60.0));
        assert_eq!(estimated(3), (10.0, 110.0, 210.0), "alone at its endpoint");
        assert_eq!(estimated(4), (60.0, 130.0, 230.0));
        assert_eq!(estimated(5), (995.0, 1_000.0, 1_000.0), "not after its last token");
    }
}
