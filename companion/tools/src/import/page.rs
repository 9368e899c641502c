//! YAML with comments, as a person would write it: what a library that knows values only can't.
//!
//! A mapping without a key is left out, its comments aren't. No line is longer than [`WIDTH`] but for values that are.

use std::fmt::Write as _;

/// Columns of a page.
const WIDTH: usize = 110;
/// A comment wraps no narrower than this, however deep it stands.
const NARROW: usize = 40;

/// The keys and comments of one mapping, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Block(Vec<Item>);

#[derive(Clone, Debug)]
enum Item {
    Comment(String),
    Pair {
        key: String,
        value: String,
        note: String,
    },
    Map {
        key: String,
        block: Block,
    },
    List {
        key: String,
        blocks: Vec<Block>,
    },
}

impl Block {
    /// A comment on lines of its own.
    pub(super) fn comment(&mut self, text: impl Into<String>) {
        self.0.push(Item::Comment(text.into()));
    }

    /// A key; `value` is YAML, and `note` says where it is from.
    pub(super) fn pair(&mut self, key: &str, value: impl Into<String>, note: impl Into<String>) {
        self.0.push(Item::Pair {
            key: key.into(),
            value: value.into(),
            note: note.into(),
        });
    }

    pub(super) fn map(&mut self, key: &str, block: Block) {
        self.0.push(Item::Map {
            key: text(key),
            block,
        });
    }

    pub(super) fn list(&mut self, key: &str, blocks: Vec<Block>) {
        self.0.push(Item::List {
            key: key.into(),
            blocks,
        });
    }

    /// What another mapping says, after what this one does.
    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The page.
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
                        page.push_str(&entry(block, depth));
                    }
                }
            }
        }
    }
}

/// A mapping as an item of a list: its first key follows a dash.
fn entry(block: &Block, depth: usize) -> String {
    let mut page = String::new();
    block.write(depth + 2, &mut page);
    let mut dashed = String::with_capacity(page.len());
    let mut open = true;
    for line in page.lines() {
        if open && !line.trim_start().starts_with('#') {
            open = false;
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

/// What was read may hold anything; a comment ends with its line.
fn one_line(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|it| {
            if it.is_control() || it == '\u{feff}' || it == '\u{2028}' || it == '\u{2029}' || it == '\u{85}' {
                ' '
            } else {
                it
            }
        })
        .collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text as a YAML scalar, in quotes where it needs them.
pub(super) fn text(text: &str) -> String {
    let plain = text.starts_with(|it: char| it.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'-' | b'.' | b'/'))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// Words that some reader of YAML takes for something else.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_yaml_with_its_reasons() {
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
    fn comments_hold_whatever_was_read() {
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
