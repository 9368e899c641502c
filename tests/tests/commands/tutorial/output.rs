//! Compares a command's output with the lines that a page shows.
//!
//! Numbers count as equal, and so does any blank space between words. `...` as a line stands for any lines, at a line's end or beginning for the rest
//! of that line. Everything else must be as shown, and nothing else may be printed.

/// Compares. A command whose output the page does not show must print nothing.
///
/// # Errors
/// The first line of the page that the output doesn't have, or the first line of the output that the page doesn't have.
pub(crate) fn check(shown: &[String], printed: &str) -> Result<(), String> {
    let printed: Vec<&str> = printed.lines().collect();
    let mut rest = printed.as_slice();
    let mut may_skip = false;
    for line in shown {
        if line.trim() == "..." {
            may_skip = true;
            continue;
        }
        let found = match rest.iter().position(|candidate| is_shown_as(candidate, line)) {
            Some(0) => 0,
            Some(found) if may_skip => found,
            Some(_) | None => return Err(format!("the output doesn't have this line here: {line}")),
        };
        rest = &rest[found + 1..];
        may_skip = false;
    }
    match rest.first() {
        Some(line) if !may_skip => Err(format!("the page doesn't show this line of the output: {line}")),
        Some(_) | None => Ok(()),
    }
}

/// Whether a printed line is what the page shows.
fn is_shown_as(printed: &str, shown: &str) -> bool {
    let (printed, shown) = (normal(printed), normal(shown));
    match (shown.strip_prefix("... "), shown.strip_suffix("...")) {
        (Some(end), _) => printed.ends_with(end),
        (None, Some(begin)) => printed.starts_with(begin.trim_end()),
        (None, None) => printed == shown,
    }
}

/// The line with `#` in place of each number, and single blanks.
fn normal(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        let mut is_number = false;
        for letter in word.chars() {
            // Commas and points inside of numbers: 1,234.5.
            is_number = letter.is_ascii_digit() || is_number && matches!(letter, ',' | '.');
            match (is_number, text.ends_with('#')) {
                (true, true) => {}
                (true, false) => text.push('#'),
                (false, _) => text.push(letter),
            }
        }
    }
    text
}

#[test]
fn numbers_and_blanks_may_differ_and_words_may_not() {
    let check = |shown: &[&str], printed: &str| {
        let shown: Vec<_> = shown.iter().map(|line| (*line).to_owned()).collect();
        check(&shown, printed).is_ok()
    };
    assert!(check(&["took 1,234.5 s"], "took  0.1   s\n"));
    assert!(check(&["a", "...", "d"], "a\nb\nc\nd\n"));
    assert!(check(&["a", "..."], "a\nb\n"));
    assert!(check(&["a 1 ..."], "a 2 b\n"));
    assert!(check(&["... x: 1"], "2026-11-24 INFO x: 3\n"));
    assert!(check(&[], ""));
    assert!(!check(&[], "surprise\n"));
    assert!(!check(&["a"], ""));
    assert!(!check(&["a"], "a\nb\n"));
    assert!(!check(&["a", "c"], "a\nb\nc\n"));
    assert!(!check(&["b", "...", "a"], "a\nb\n"));
    assert!(!check(&["a 1 b"], "a 1 c\n"));
    assert!(!check(&["a 1"], "a b\n"));
}
