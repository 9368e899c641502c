//! In which line of the document a key stands, for rules that are checked when the document has long been read.
//!
//! The document is walked again along the key's path, and an error is provoked there: it knows its line. It isn't fast,
//! and runs once before a program ends. A key that isn't written counts as its nearest ancestor that is.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The line, from 1, of the key at `path`, written as in `pools[0].queue.ttl`. Keys may hold dots themselves.
pub(super) fn line(text: &str, path: &str) -> u64 {
    let mut path = path;
    loop {
        let reached = Cell::new(0);
        let seek = Seek {
            path,
            at: 0,
            reached: &reached,
        };
        let found = serde_saphyr::with_deserializer_from_str(text, |document| seek.deserialize(document));
        match found {
            Err(error) => return error.location().map_or(1, |it| it.line()),
            Ok(()) if reached.get() >= path.len() => return 1,
            Ok(()) => path = path.get(..reached.get()).unwrap_or_default(),
        }
    }
}

/// Goes on along `path` from the byte `at`.
struct Seek<'a> {
    path: &'a str,
    at: usize,
    /// The end of the deepest part of the path that is written.
    reached: &'a Cell<usize>,
}

impl<'a> Seek<'a> {
    fn rest(&self) -> &'a str {
        self.path.get(self.at..).unwrap_or_default()
    }

    /// Where the path goes on if this is its next key.
    fn after_key(&self, key: &str) -> Option<usize> {
        let rest = self.rest();
        let dot = usize::from(rest.starts_with('.'));
        let rest = rest.get(dot..)?.strip_prefix(key)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then_some(self.at + dot + key.len())
    }

    /// The next index, and where the path goes on after it.
    fn index(&self) -> Option<(usize, usize)> {
        let (index, _) = self.rest().strip_prefix('[')?.split_once(']')?;
        Some((index.parse().ok()?, self.at + index.len() + 2))
    }

    const fn enter(&self, at: usize) -> Self {
        Self { at, ..*self }
    }
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.reached.set(self.at);
        if self.rest().is_empty() {
            deserializer.deserialize_any(Here)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a mapping or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.after_key(&key) {
                Some(at) => map.next_value_seed(self.enter(at))?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((index, after)) = self.index() else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        for _ in 0..index {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        list.next_element_seed(self.enter(after))?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Takes nothing: whatever is here is an error, with its line.
struct Here;

impl Visitor<'_> for Here {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_key_has_its_line_and_a_missing_one_its_parents() {
        let text = "pools:\n- name: a\n- name: b\n  queue:\n    ttl: 3s\n  models:\n    qwen2.5*:\n      x: [1,\n        2]\n";
        let cases = [
            ("pools[0].name", 2),
            ("pools[1].name", 3),
            ("pools[1].queue.ttl", 5),
            ("pools[1].queue.max_rate", 5),
            ("pools[1].models.qwen2.5*.x[1]", 9),
            ("pools[1].models.qwen2.5*.y.z", 8),
            ("pools[7].name", 1),
            ("stock", 1),
        ];
        for (path, at) in cases {
            assert_eq!(line(text, path), at, "{path}");
        }
        assert_eq!(line("pools: []", "pools"), 1);
    }
}
