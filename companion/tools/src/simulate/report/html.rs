//! Text and tables as HTML. Every text from outside passes through [`escape`].

use std::fmt::Write as _;

/// The text with the characters escaped that have a meaning in HTML, SVG and their attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are no valid HTML, and could change the direction of the text.
            control if control.is_control() || is_direction(control) => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

const fn is_direction(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A table. The first cell of each row is its heading.
pub(super) fn table<'a>(
    caption: &str,
    columns: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut html = String::from("<div class=\"wide\"><table>");
    if !caption.is_empty() {
        let _ = write!(html, "<caption>{}</caption>", escape(caption));
    }
    html.push_str("<thead><tr>");
    for column in columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(column));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = if index == 0 {
                write!(html, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(html, "<td>{cell}</td>")
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        let text = "<script>alert(\"1\" & '2')</script>\u{202e}\n";
        let escaped = "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;\u{fffd}\u{fffd}";
        assert_eq!(escape(text), escaped);
        let table = table("<b>", ["<i>"], [vec!["<u>".to_owned(), "<s>".to_owned()]]);
        for tag in ["<b>", "<i>", "<u>", "<s>"] {
            assert!(!table.contains(tag), "{table}");
        }
    }
}
