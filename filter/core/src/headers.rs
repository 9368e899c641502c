//! A header map as the host gives it, read in place.
//!
//! In WebAssembly one host call fetches the whole map, which costs about as much as fetching two single headers. The format is
//! proxy-wasm's: a count, then the two lengths of each pair, then the pairs, each string followed by a zero byte. All
//! numbers have 32 bits, little endian. A malformed buffer ends the map early; it is no error. A native host has the strings in
//! memory.

/// The headers of a request or of a response; names are in lower case, pseudo-headers included.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    pairs: Pairs<'a>,
    /// One bit for each name length that occurs, modulo 64.
    name_lengths: u64,
}

#[derive(Clone, Copy, Debug)]
enum Pairs<'a> {
    Serialized(Serialized<'a>),
    Slices(&'a [Pair<'a>]),
}

/// A name and its value.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

#[derive(Clone, Copy, Debug)]
struct Serialized<'a> {
    lengths: &'a [u8],
    text: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Reads the host's serialized map. A malformed map is empty.
    #[must_use]
    pub fn new(map: &'a [u8]) -> Self {
        let serialized = Serialized::new(map).unwrap_or(Serialized { lengths: &[], text: &[] });
        let lengths = serialized.lengths.as_chunks::<4>().0.as_chunks::<2>().0.iter();
        let lengths = lengths.map(|[[length, ..], _]| bit(usize::from(*length)));
        Self { pairs: Pairs::Serialized(serialized), name_lengths: lengths.fold(0, |bits, bit| bits | bit) }
    }

    /// The map of these pairs.
    #[must_use]
    pub fn of_pairs(pairs: &'a [Pair<'a>]) -> Self {
        let name_lengths = pairs.iter().fold(0, |bits, (name, _)| bits | bit(name.len()));
        Self { pairs: Pairs::Slices(pairs), name_lengths }
    }

    /// How many headers there are.
    #[must_use]
    pub const fn count(self) -> usize {
        match self.pairs {
            Pairs::Serialized(map) => map.count(),
            Pairs::Slices(pairs) => pairs.len(),
        }
    }

    /// Bytes of all names and values.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self.pairs {
            // Each string is followed by a zero byte.
            Pairs::Serialized(map) => map.text.len().saturating_sub(map.count().saturating_mul(2)),
            Pairs::Slices(pairs) => {
                let bytes = |(name, value): &Pair<'_>| name.len().saturating_add(value.len());
                pairs.iter().map(bytes).fold(0, usize::saturating_add)
            }
        }
    }

    /// All pairs, in order.
    pub fn iter(self) -> impl Iterator<Item = Pair<'a>> {
        let mut rest = self.pairs;
        core::iter::from_fn(move || match &mut rest {
            Pairs::Serialized(map) => map.next(),
            Pairs::Slices(pairs) => {
                let (pair, rest) = pairs.split_first()?;
                *pairs = rest;
                Some(*pair)
            }
        })
    }

    /// The first value under `name`.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        // Most lookups are for names that the map doesn't have, and the length rules most of them out.
        if self.name_lengths & bit(name.len()) == 0 {
            return None;
        }
        match self.pairs {
            Pairs::Serialized(map) => map.get(name),
            Pairs::Slices(pairs) => {
                pairs.iter().find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| *value)
            }
        }
    }

    /// The first value under `name` as trimmed text of at most `limit` bytes; `None` if that is empty.
    #[must_use]
    pub fn text(self, name: &str, limit: usize) -> Option<String> {
        self.get(name).and_then(|value| bounded(value, limit))
    }

    /// At most `entries` entries of a comma-separated list, over all headers of this name.
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

impl<'a> Serialized<'a> {
    fn new(map: &'a [u8]) -> Option<Self> {
        let (count, rest) = map.split_first_chunk::<4>()?;
        let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(8)?;
        let (lengths, text) = rest.split_at_checked(bytes)?;
        Some(Self { lengths, text })
    }

    const fn count(self) -> usize {
        self.lengths.len() / 8
    }

    /// Takes the first pair off.
    fn next(&mut self) -> Option<Pair<'a>> {
        let (name, rest) = self.lengths.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        self.lengths = rest;
        Some((take(&mut self.text, *name)?, take(&mut self.text, *value)?))
    }

    fn get(self, name: &str) -> Option<&'a [u8]> {
        let mut start: usize = 0;
        for [key, value] in self.lengths.as_chunks::<4>().0.as_chunks::<2>().0 {
            let [key, value] = [length(*key)?, length(*value)?];
            let key_end = start.saturating_add(key);
            let begin = key_end.saturating_add(1);
            let end = begin.saturating_add(value);
            if key == name.len() && self.text.get(start..key_end)? == name.as_bytes() {
                // The range includes the zero byte after the value.
                return self.text.get(begin..=end)?.split_last().map(|(_, value)| value);
            }
            start = end.saturating_add(1);
        }
        None
    }
}

/// The bit for a name length.
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

/// At most `limit` bytes of `value`, trimmed, as text. Invalid UTF-8 is replaced. `None` if the text is empty.
#[must_use]
pub fn bounded(value: &[u8], limit: usize) -> Option<String> {
    let text = String::from_utf8_lossy(value.trim_ascii());
    let text = text.get(..text.floor_char_boundary(limit)).unwrap_or_default();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Serializes a header map in the host's form, as `Headers::new` reads it.
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
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn serialized_map_reads_back() {
        let map = serialize([(":path", "/v1"), ("x-list", "a, b"), ("x-list", ",c"), ("empty", "")]);
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
    fn malformed_map_ends_early() {
        let map = serialize([("a", "1"), ("b", "2")]);
        for end in 0..map.len() {
            assert!(Headers::new(&map[..end]).iter().count() < 2);
        }
        assert_eq!(Headers::new(&[255; 64]).iter().count(), 0);
    }

    #[test]
    fn values_are_cut_at_character_boundaries() {
        assert_eq!(bounded(" äöü ".as_bytes(), 3).as_deref(), Some("ä"));
        assert_eq!(bounded(&[0xff, b'x'], 9).as_deref(), Some("\u{fffd}x"));
        assert_eq!(bounded(b"  ", 9), None);
    }
}
