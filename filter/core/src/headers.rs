//! A header map as the host hands it over: one buffer, looked at in place.
//!
//! One host call brings the whole map, which costs about as much as reading two headers one by one. The format is
//! proxy-wasm's: a count, then the two lengths of each pair, then the pairs, each string followed by a zero byte; all
//! numbers are 32 bits, little endian. A buffer that breaks the format ends the map early; nothing fails.

/// The headers of a request or of a response; names are in lower case, pseudo-headers included.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    lengths: &'a [u8],
    text: &'a [u8],
    /// A bit for each length that a name has, modulo 64.
    has: u64,
}

impl<'a> Headers<'a> {
    /// Reads the host's serialised map. What can't be read is an empty map.
    #[must_use]
    pub fn new(map: &'a [u8]) -> Self {
        let empty = Self {
            lengths: &[],
            text: &[],
            has: 0,
        };
        let Some((count, rest)) = map.split_first_chunk::<4>() else {
            return empty;
        };
        let bytes = usize::try_from(u32::from_le_bytes(*count))
            .ok()
            .and_then(|count| count.checked_mul(8));
        match bytes.and_then(|bytes| rest.split_at_checked(bytes)) {
            Some((lengths, text)) => {
                let mut has = 0;
                for [[length, ..], _] in lengths.as_chunks::<4>().0.as_chunks::<2>().0 {
                    has |= bit(usize::from(*length));
                }
                Self { lengths, text, has }
            }
            None => empty,
        }
    }

    /// All pairs, in order.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut text = self.text;
        self.lengths
            .as_chunks::<4>()
            .0
            .as_chunks::<2>()
            .0
            .iter()
            .map_while(move |[name, value]| Some((take(&mut text, *name)?, take(&mut text, *value)?)))
    }

    /// The first value under `name`.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        // A map is asked for dozens of names that it doesn't have: who has another length isn't looked at.
        if self.has & bit(name.len()) == 0 {
            return None;
        }
        let mut at: usize = 0;
        for [key, value] in self.lengths.as_chunks::<4>().0.as_chunks::<2>().0 {
            let [key, value] = [length(*key)?, length(*value)?];
            let key_end = at.saturating_add(key);
            let begin = key_end.saturating_add(1);
            let end = begin.saturating_add(value);
            if key == name.len() && self.text.get(at..key_end)? == name.as_bytes() {
                // Behind each stands a zero.
                return self.text.get(begin..=end)?.split_last().map(|(_, value)| value);
            }
            at = end.saturating_add(1);
        }
        None
    }

    /// The first value under `name`, as text, at most `limit` bytes of it, without spaces around it. None also if
    /// nothing is left.
    #[must_use]
    pub fn text(self, name: &str, limit: usize) -> Option<String> {
        self.get(name).and_then(|value| bounded(value, limit))
    }

    /// The entries of a comma-separated list, over all headers of that name, at most `entries` of them.
    #[must_use]
    pub fn list(self, name: &str, entries: usize, entry_bytes: usize) -> Vec<String> {
        self.iter()
            .filter(|(key, _)| *key == name.as_bytes())
            .flat_map(|(_, value)| value.split(|byte| *byte == b','))
            .filter_map(|entry| bounded(entry, entry_bytes))
            .take(entries)
            .collect()
    }
}

/// Of a length, by its lowest byte.
fn bit(length: usize) -> u64 {
    let [lowest, ..] = length.to_le_bytes();
    1_u64.wrapping_shl(u32::from(lowest))
}

fn length(bytes: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn take<'a>(text: &mut &'a [u8], bytes: [u8; 4]) -> Option<&'a [u8]> {
    let (string, rest) = text.split_at_checked(length(bytes)?)?;
    *text = rest.split_first()?.1;
    Some(string)
}

/// At most `limit` bytes of `value`, trimmed, as text; what isn't UTF-8 is replaced. None if nothing is left.
#[must_use]
pub fn bounded(value: &[u8], limit: usize) -> Option<String> {
    let text = String::from_utf8_lossy(value.trim_ascii());
    let text = text.get(..text.floor_char_boundary(limit)).unwrap_or_default();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The host's form of a header map, as `Headers::new` reads it.
#[must_use]
pub fn serialize<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut count = 0_u32;
    let mut lengths = Vec::new();
    let mut text = Vec::new();
    for (name, value) in pairs {
        let (Ok(name_bytes), Ok(value_bytes)) = (u32::try_from(name.len()), u32::try_from(value.len()))
        else {
            continue;
        };
        count = count.saturating_add(1);
        lengths.extend_from_slice(&name_bytes.to_le_bytes());
        lengths.extend_from_slice(&value_bytes.to_le_bytes());
        for string in [name, value] {
            text.extend_from_slice(string.as_bytes());
            text.push(0);
        }
    }
    [&count.to_le_bytes()[..], &lengths, &text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_map_reads_back_as_written() {
        let map = serialize([
            (":path", "/v1"),
            ("x-list", "a, b"),
            ("x-list", ",c"),
            ("empty", ""),
        ]);
        let headers = Headers::new(&map);
        assert_eq!(headers.iter().count(), 4);
        assert_eq!(headers.get(":path"), Some(&b"/v1"[..]));
        assert_eq!(headers.get("empty"), Some(&b""[..]));
        assert_eq!(headers.text("empty", 9), None);
        assert_eq!(headers.get("absent"), None);
        assert_eq!(headers.list("x-list", 64, 64), ["a", "b", "c"]);
        assert_eq!(headers.list("x-list", 2, 64), ["a", "b"]);
    }

    #[test]
    fn broken_maps_end_early() {
        let map = serialize([("a", "1"), ("b", "2")]);
        for end in 0..map.len() {
            assert!(Headers::new(&map[..end]).iter().count() < 2);
        }
        assert_eq!(Headers::new(&[255; 64]).iter().count(), 0);
    }

    #[test]
    fn values_are_bounded_at_characters() {
        assert_eq!(bounded(" äöü ".as_bytes(), 3).as_deref(), Some("ä"));
        assert_eq!(bounded(&[0xff, b'x'], 9).as_deref(), Some("\u{fffd}x"));
        assert_eq!(bounded(b"  ", 9), None);
    }
}
