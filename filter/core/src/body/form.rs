//! Reads a body of `multipart/form-data`, in which audio and images come: the model, and the texts.
//!
//! The files in it aren't read, so a request with such a body counts by its texts alone.

use std::sync::Arc;

use memchr::memmem;
use penstock_wire::limits::{NAME_BYTES_MAX, SEQUENCES_MAX};

use super::Body;
use crate::limits::{FORM_HEADER_BYTES_MAX, FORM_PARTS_MAX};

/// The scanner of a form.
#[derive(Debug)]
pub(super) struct Form {
    /// Finds a line break, two hyphens, and the boundary.
    delimiter: memmem::Finder<'static>,
    state: State,
    /// Parts that have begun.
    parts: usize,
    /// Bytes that may be the beginning of a delimiter or of the headers of a part.
    rest: Vec<u8>,
    body_keys: Arc<[String]>,
    body: Body,
    offset: u64,
}

#[derive(Debug)]
enum State {
    /// Before the first delimiter, or in a part that isn't read.
    Skipping,
    /// In a part: its name, and its value as far as it is kept.
    Reading { name: String, value: Vec<u8>, bytes: u64 },
    /// After a delimiter, until the end of the part's headers.
    Headers,
    /// After the last part, or after something that no server reads.
    Done,
}

impl Form {
    /// The scanner of a form with this `content-type`; `None`: the type isn't that of a form.
    pub(super) fn new(content_type: &[u8], body_keys: Arc<[String]>) -> Option<Self> {
        let boundary = boundary(core::str::from_utf8(content_type).ok()?)?;
        let identities = vec![None; body_keys.len()];
        Some(Self {
            delimiter: memmem::Finder::new(&[b"\r\n--", boundary.as_bytes()].concat()).into_owned(),
            state: State::Skipping,
            parts: 0,
            // The first delimiter begins the body.
            rest: b"\r\n".to_vec(),
            body_keys,
            body: Body { identities, sequences: 1, ..Body::default() },
            offset: 0,
        })
    }

    /// Bytes read.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn into_body(mut self) -> Body {
        self.end_part();
        self.body
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.offset = self.offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let mut unread = core::mem::take(&mut self.rest);
        unread.extend_from_slice(bytes);
        let mut unread = unread.as_slice();
        loop {
            let (end, next) = match self.state {
                State::Done => return,
                State::Headers => match headers_end(unread) {
                    End::At(end, next) if end <= FORM_HEADER_BYTES_MAX && self.parts < FORM_PARTS_MAX => {
                        self.parts = self.parts.saturating_add(1);
                        (end, next)
                    }
                    End::Unknown if unread.len() <= FORM_HEADER_BYTES_MAX => {
                        self.rest = unread.to_vec();
                        return;
                    }
                    End::At(..) | End::Last | End::Unknown => {
                        self.state = State::Done;
                        return;
                    }
                },
                State::Skipping | State::Reading { .. } => {
                    let Some(end) = self.delimiter.find(unread) else {
                        let kept = self.delimiter.needle().len().saturating_sub(1).min(unread.len());
                        let (read, rest) = unread.split_at(unread.len().saturating_sub(kept));
                        self.read(read);
                        self.rest = rest.to_vec();
                        return;
                    };
                    (end, end.saturating_add(self.delimiter.needle().len()))
                }
            };
            let found = unread.get(..end).unwrap_or_default();
            if matches!(self.state, State::Headers) {
                self.begin_part(found);
            } else {
                self.read(found);
                self.end_part();
            }
            unread = unread.get(next..).unwrap_or_default();
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        if let State::Reading { value, bytes: length, .. } = &mut self.state {
            *length = length.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            let room = NAME_BYTES_MAX.saturating_add(1).saturating_sub(value.len());
            value.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    fn begin_part(&mut self, headers: &[u8]) {
        self.state = match field_name(&String::from_utf8_lossy(headers)) {
            Some(name) => State::Reading { name, value: Vec::new(), bytes: 0 },
            None => State::Skipping,
        };
    }

    fn end_part(&mut self) {
        let State::Reading { name, value, bytes } = core::mem::replace(&mut self.state, State::Headers)
        else {
            return;
        };
        let text = String::from_utf8(value).ok().filter(|text| text.len() <= NAME_BYTES_MAX);
        let text = text.as_deref().map(str::trim).filter(|text| !text.is_empty());
        match name.as_str() {
            "model" => text.unwrap_or_default().clone_into(&mut self.body.model),
            "stream" => self.body.stream = matches!(text, Some("true" | "True" | "1")),
            "n" => {
                let count = text.and_then(|text| text.parse().ok()).unwrap_or(1);
                self.body.sequences = u64::clamp(count, 1, SEQUENCES_MAX);
            }
            "prompt" | "input" | "text" | "instructions" => {
                self.body.prompt_bytes = self.body.prompt_bytes.saturating_add(bytes);
            }
            _ => {}
        }
        let index = self.body_keys.iter().position(|key| *key == name);
        if let Some(identity) = index.and_then(|index| self.body.identities.get_mut(index)) {
            *identity = text.map(str::to_owned);
        }
    }
}

enum End {
    /// The headers of a part end here, and its value begins there.
    At(usize, usize),
    /// No part follows.
    Last,
    Unknown,
}

/// The end of the headers of a part, which begin with the rest of the delimiter's line.
fn headers_end(bytes: &[u8]) -> End {
    if bytes.starts_with(b"--") {
        return End::Last;
    }
    memmem::find(bytes, b"\r\n\r\n").map_or(End::Unknown, |end| End::At(end, end.saturating_add(4)))
}

/// The boundary in a `content-type` of a form.
fn boundary(content_type: &str) -> Option<String> {
    let mut parameters = content_type.split(';').map(str::trim);
    if !parameters.next()?.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.find_map(|parameter| value_of(parameter, "boundary"))?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// The name of a field with a text; `None`: the part is a file, or has no name.
fn field_name(headers: &str) -> Option<String> {
    let line = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let parameters = || line.split(';').map(str::trim);
    let is_file = parameters().any(|parameter| {
        value_of(parameter, "filename").or_else(|| value_of(parameter, "filename*")).is_some()
    });
    let name = parameters().find_map(|parameter| value_of(parameter, "name"));
    name.filter(|_| !is_file)
}

/// The value of a parameter with this name, without quotes.
fn value_of(parameter: &str, name: &str) -> Option<String> {
    let (found, value) = parameter.split_once('=')?;
    found.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const FORM: &str = "--b1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
        Content-Type: audio/wav\r\n\r\nRIFF\r\n--b\r\n\r\nname=\"model\"\r\n\r\nwrong\r\n\
        --b1\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n\
        --b1\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nA talk\r\nabout proxies.\r\n\
        --b1\r\nContent-Disposition: form-data; name=user\r\n\r\nada\r\n\
        --b1\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b1--\r\nmodel";

    fn scan(body: &str, piece: usize) -> Body {
        let keys: Arc<[String]> = [String::from("user")].into();
        let mut form =
            Form::new(b"Multipart/Form-Data; charset=utf-8; boundary=\"b1\"", keys).expect("a form");
        for bytes in body.as_bytes().chunks(piece) {
            form.feed(bytes);
        }
        assert_eq!(form.offset(), body.len() as u64);
        form.into_body()
    }

    #[test]
    fn the_fields_of_a_form_are_read_in_pieces_of_any_size() {
        for piece in 1..FORM.len() {
            let body = scan(FORM, piece);
            let read = (body.model.as_str(), body.stream, body.prompt_bytes, body.sequences);
            assert_eq!(read, ("whisper", true, 22, 1), "pieces of {piece}");
            assert_eq!(body.identities, [Some("ada".to_owned())]);
        }
    }

    #[test]
    fn what_is_no_form_has_no_fields() {
        for broken in [
            "",
            "--b1",
            "--b1\r\nx",
            "--b2\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nx\r\n--b2--",
        ] {
            assert_eq!(scan(broken, 7).model, "", "{broken:?}");
        }
        let endless = format!("--b1\r\n{}", "x".repeat(FORM_HEADER_BYTES_MAX * 3));
        assert_eq!(scan(&endless, 4_096).model, "");
        let long = FORM.replace("whisper", &"m".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(scan(&long, 100).model, "");
        for other in [
            "application/json",
            "multipart/form-data",
            "multipart/mixed; boundary=b",
            "multipart/form-data; boundary=",
        ] {
            assert!(Form::new(other.as_bytes(), Arc::new([])).is_none(), "{other}");
        }
    }

    #[test]
    fn a_form_that_is_cut_keeps_what_it_had() {
        let cut = &FORM[..FORM.len() - 40];
        assert_eq!(scan(cut, 50).model, "whisper");
    }
}
