//! Writes YAML with comments, which serializers of values can't.
//!
//! A mapping without keys is left out, but its comments are written. Lines are at most [`WIDTH`] columns wide, unless a value is
//! wider.

use std::fmt::Write as _;

/// Columns of a line.
const WIDTH: usize = 110;
/// The least columns of a comment's text, however deep it is indented.
const NARROW: usize = 40;

/// The keys and comments of one mapping, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Block(Vec<Item>);

#[derive(Clone, Debug)]
enum Item {
    Comment(String),
    Pair { key: String, value: String, note: String },
    Map { key: String, block: Block },
    List { key: String, blocks: Vec<Block> },
}

impl Block {
    /// Adds a comment on separate lines.
    pub(super) fn comment(&mut self, text: impl Into<String>) {
        self.0.push(Item::Comment(text.into()));
    }

    /// Adds a key. `value` is YAML, and `note` its origin, or empty.
    pub(super) fn pair(&mut self, key: &str, value: impl Into<String>, note: impl Into<String>) {
        self.0.push(Item::Pair { key: key.into(), value: value.into(), note: note.into() });
    }

    /// Adds a key with a mapping.
    pub(super) fn map(&mut self, key: &str, block: Block) {
        self.0.push(Item::Map { key: text(key), block });
    }

    /// Adds a key with a list of mappings.
    pub(super) fn list(&mut self, key: &str, blocks: Vec<Block>) {
        self.0.push(Item::List { key: key.into(), blocks });
    }

    /// Adds the keys and comments of another mapping.
    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The text of the page.
    pub(super) fn render(&self) -> String {
        let mut page = String::new();
        self.write(0, &mut page);
        page
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|item| match item {
            Item::Comment(_) => true,
            Item::Pair { .. } => false,
            Item::Map { block, .. } => block.is_empty(),
            Item::List { blocks, .. } => blocks.iter().all(Block::is_empty),
        })
    }

    fn write(&self, depth: usize, page: &mut String) {
        let indent = " ".repeat(depth);
        for item in &self.0 {
            match item {
                Item::Comment(text) => comment(&indent, text, page),
                Item::Pair { key, value, note } => {
                    let line = format!("{indent}{key}: {value}");
                    if note.is_empty() {
                        let _ = writeln!(page, "{line}");
                    } else if line.chars().count() + note.chars().count() + 4 <= WIDTH {
                        let _ = writeln!(page, "{line}  # {}", one_line(note));
                    } else {
                        comment(&indent, note, page);
                        let _ = writeln!(page, "{line}");
                    }
                }
                Item::Map { block, .. } if block.is_empty() => block.write(depth, page),
                Item::Map { key, block } => {
                    let _ = writeln!(page, "{indent}{key}:");
                    block.write(depth + 2, page);
                }
                Item::List { key, blocks } => {
                    let _ = writeln!(page, "{indent}{key}:");
                    for block in blocks {
                        page.push_str(&list_item(block, depth));
                    }
                }
            }
        }
    }
}

/// A mapping as an item of a list, with a dash before its first key.
fn list_item(block: &Block, depth: usize) -> String {
    let mut page = String::new();
    block.write(depth + 2, &mut page);
    let mut dashed = String::with_capacity(page.len());
    let mut before_first_key = true;
    for line in page.lines() {
        if before_first_key && !line.trim_start().starts_with('#') {
            before_first_key = false;
            let _ = writeln!(dashed, "{}- {}", " ".repeat(depth), line.trim_start());
        } else {
            let _ = writeln!(dashed, "{line}");
        }
    }
    dashed
}

fn comment(indent: &str, text: &str, page: &mut String) {
    let room = WIDTH.saturating_sub(indent.len() + 2).max(NARROW);
    let text = one_line(text);
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            let _ = writeln!(page, "{indent}# {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(page, "{}", format!("{indent}# {line}").trim_end());
}

/// The text without line breaks and control characters. A value of the source may contain any character, and a comment must not
/// end before its line does.
fn one_line(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|char| {
            if char.is_control() || matches!(char, '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{85}') {
                ' '
            } else {
                char
            }
        })
        .collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text as a YAML scalar, in quotes if it needs them.
pub(super) fn text(text: &str) -> String {
    let is_plain = text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/'))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// Words that some YAML readers take for booleans or null.
const RESERVED: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_notes_and_comments() {
        let mut inner = Block::default();
        inner.comment("nothing but a reason");
        let mut queue = Block::default();
        queue.pair("ttl", "30s", "from `queue_ttl`");
        let mut first = Block::default();
        first.comment("of the first");
        first.pair("name", text("a"), "");
        first.map("queue", queue);
        first.map("stock", inner);
        let mut second = Block::default();
        second.pair("name", text("no"), "long ".repeat(30));
        let mut page = Block::default();
        page.list("pools", vec![first, second]);
        let long = "long ".repeat(30).trim().to_owned();
        let (one, two) = long.split_at(104);
        assert_eq!(
            page.render(),
            format!(
                "pools:\n  # of the first\n- name: a\n  queue:\n    ttl: 30s  # from `queue_ttl`\n  # nothing but a reason\n  # {}\n  # {}\n- name: \"no\"\n",
                one.trim(),
                two.trim()
            )
        );
    }

    #[test]
    fn comments_and_texts_escape_any_character() {
        let mut page = Block::default();
        page.comment("a\nlisten: {}\r\n\u{2028}b\u{85}c\u{0}d");
        assert_eq!(page.render(), "# a listen: {} b c d\n");
        assert_eq!(text("a\nb: c"), "\"a\\nb: c\"");
        for plain in ["qwen-7b", "org/model.v2"] {
            assert_eq!(text(plain), plain);
        }
        for quoted in ["", "1", "-x", "a b", "a:b", "Off", "null", "*"] {
            assert_eq!(text(quoted), format!("\"{quoted}\""));
        }
    }
}
