//! Reads a body of `multipart/form-data`, in which audio and images come: the model, and the texts.
//!
//! The files in it aren't read, so a request with such a body counts by its texts alone.

use std::sync::Arc;

use memchr::memmem;
use penstock_wire::limits::{NAME_BYTES_MAX, SEQUENCES_MAX};

use super::{Body, BodyError};
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
    has_model: bool,
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
    /// After the last part.
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
            has_model: false,
            offset: 0,
        })
    }

    /// Bytes read.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// # Errors
    /// The last part, which has no end, is a second model.
    pub(super) fn into_body(mut self) -> Result<Body, BodyError> {
        self.end_part()?;
        Ok(self.body)
    }

    /// # Errors
    /// The form has two models, or servers may read it in more than one way.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.offset = self.offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let mut unread = core::mem::take(&mut self.rest);
        unread.extend_from_slice(bytes);
        let mut unread = unread.as_slice();
        loop {
            let (end, next) = match self.state {
                State::Done => return Ok(()),
                State::Headers => match headers_end(unread) {
                    End::At(end, next) if end <= FORM_HEADER_BYTES_MAX && self.parts < FORM_PARTS_MAX => {
                        self.parts = self.parts.saturating_add(1);
                        (end, next)
                    }
                    End::Last => {
                        self.state = State::Done;
                        return Ok(());
                    }
                    End::Unknown if unread.len() <= FORM_HEADER_BYTES_MAX => {
                        self.rest = unread.to_vec();
                        return Ok(());
                    }
                    End::At(..) | End::Unknown | End::Never => return Err(BodyError::BadForm),
                },
                State::Skipping | State::Reading { .. } => {
                    let Some(end) = self.delimiter.find(unread) else {
                        let kept = self.delimiter.needle().len().saturating_sub(1).min(unread.len());
                        let (read, rest) = unread.split_at(unread.len().saturating_sub(kept));
                        self.read(read);
                        self.rest = rest.to_vec();
                        return Ok(());
                    };
                    (end, end.saturating_add(self.delimiter.needle().len()))
                }
            };
            let found = unread.get(..end).unwrap_or_default();
            if matches!(self.state, State::Headers) {
                self.begin_part(found);
            } else {
                self.read(found);
                self.end_part()?;
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

    fn end_part(&mut self) -> Result<(), BodyError> {
        let State::Reading { name, value, bytes } = core::mem::replace(&mut self.state, State::Headers)
        else {
            return Ok(());
        };
        let text = String::from_utf8(value).ok().filter(|text| text.len() <= NAME_BYTES_MAX);
        let text = text.as_deref().map(str::trim).filter(|text| !text.is_empty());
        match name.as_str() {
            "model" if self.has_model => return Err(BodyError::TwoModels(self.offset)),
            "model" => {
                self.has_model = true;
                text.unwrap_or_default().clone_into(&mut self.body.model);
            }
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
        Ok(())
    }
}

enum End {
    /// The headers of a part end here, and its value begins there.
    At(usize, usize),
    /// No part follows.
    Last,
    /// They may end in what follows.
    Unknown,
    /// What follows the delimiter in its line is no part of a form.
    Never,
}

/// The end of the headers of a part, which begin with the rest of the delimiter's line.
fn headers_end(bytes: &[u8]) -> End {
    let line = bytes.trim_ascii_start();
    let blanks = bytes.get(..bytes.len().saturating_sub(line.len())).unwrap_or_default();
    match bytes {
        [b'-', b'-', ..] => return End::Last,
        [] | [b'-'] => return End::Unknown,
        _ if line.is_empty() => return End::Unknown,
        // A line break must end the delimiter's line, and blanks may stand before it.
        _ if memmem::find(blanks, b"\r\n").is_none() => return End::Never,
        _ => {}
    }
    memmem::find(bytes, b"\r\n\r\n").map_or(End::Unknown, |end| End::At(end, end.saturating_add(4)))
}

/// The boundary in a `content-type` of a form.
fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(parameters, "boundary")?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// The name of a field with a text; `None`: the part is a file, or has no name.
fn field_name(headers: &str) -> Option<String> {
    let parameters = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let is_file = ["filename", "filename*"].iter().any(|name| parameter(parameters, name).is_some());
    parameter(parameters, "name").filter(|_| !is_file)
}

/// The value of a parameter with this name, without quotes. In quotes, semicolons separate nothing, and a backslash takes the next character as it is.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    let mut characters = parameters.chars();
    loop {
        let (mut key, mut value) = (String::new(), String::new());
        let (mut has_value, mut is_quoted, mut is_last) = (false, false, true);
        while let Some(character) = characters.next() {
            match character {
                ';' if !is_quoted => {
                    is_last = false;
                    break;
                }
                '=' if !has_value => has_value = true,
                '"' if has_value => is_quoted = !is_quoted,
                '\\' if is_quoted => value.extend(characters.next()),
                _ if has_value => value.push(character),
                _ => key.push(character),
            }
        }
        if has_value && key.trim().eq_ignore_ascii_case(name) {
            return Some(value.trim().to_owned());
        }
        if is_last {
            return None;
        }
    }
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

    fn try_scan(body: &str, piece: usize) -> Result<Body, BodyError> {
        let keys: Arc<[String]> = [String::from("user")].into();
        let mut form =
            Form::new(b"Multipart/Form-Data; charset=utf-8; boundary=\"b1\"", keys).expect("a form");
        for bytes in body.as_bytes().chunks(piece) {
            form.feed(bytes)?;
        }
        assert_eq!(form.offset(), body.len() as u64);
        form.into_body()
    }

    fn scan(body: &str, piece: usize) -> Body {
        try_scan(body, piece).expect("a form")
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

    #[test]
    fn a_form_that_servers_read_in_more_than_one_way_is_refused() {
        let part = |headers: &str, value: &str| {
            format!("--b1\r\ncontent-disposition: form-data; {headers}\r\n\r\n{value}\r\n")
        };
        let model = part("name=\"model\"", "a");
        for (form, error) in [
            (format!("{model}{model}--b1--"), "twice"),
            (format!("--b1\r\n{}", "x".repeat(FORM_HEADER_BYTES_MAX * 3)), "can't be read"),
            (model.repeat(FORM_PARTS_MAX + 1).replace("model", "other"), "can't be read"),
            (format!("{model}--b1x\r\n\r\n"), "can't be read"),
        ] {
            for piece in [1, 7, 100_000] {
                let refused = try_scan(&form, piece).expect_err("it is refused").to_string();
                assert!(refused.contains(error), "{refused}");
            }
        }
        // A name in quotes is one name.
        let hidden = part("x=\"; name=model\"; name=\"mo\\\"del\"", "a");
        assert_eq!(scan(&format!("{hidden}--b1--"), 5).model, "");
        let blanks = model.replace("--b1\r\n", "--b1 \t\r\n");
        assert_eq!(scan(&format!("{blanks}--b1--"), 3).model, "a");
    }
}
