//! The known word that somebody most likely meant.

/// The nearest of `known`, if it is near: at most a third of the letters differ, or one word is the other's beginning.
pub(super) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_lowercase().replace(['-', ' '], "_");
    let length = written.chars().count();
    known
        .iter()
        .map(|it| (distance(&written, it), *it))
        .filter(|(far, it)| {
            let begins = length >= 3 && (it.starts_with(&written) || written.starts_with(it));
            begins || *far * 3 <= length.max(it.chars().count())
        })
        .min_by_key(|(far, _)| *far)
        .map(|(_, it)| it)
}

/// How many letters are to be put in, left out, replaced, or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut left_before = None;
    for (row, left) in one.chars().enumerate() {
        let mut next = Vec::with_capacity(last.len());
        next.push(row + 1);
        for (column, right) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(left != *right);
            let mut least = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            let swapped = column > 0 && left_before == Some(*right) && other[column - 1] == left;
            if swapped && let Some(before) = before_last.get(column - 1) {
                least = least.min(before + 1);
            }
            next.push(least);
        }
        before_last = std::mem::replace(&mut last, next);
        left_before = Some(left);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_differ_are_counted() {
        for (one, other, far) in [
            ("", "", 0),
            ("ttl", "ttl", 0),
            ("tll", "ttl", 1),
            ("tlt", "ttl", 1),
            ("queu", "queue", 1),
            ("colour", "name", 6),
        ] {
            assert_eq!(distance(one, other), far, "{one} {other}");
            assert_eq!(distance(other, one), far, "{other} {one}");
        }
    }

    #[test]
    fn what_is_near_is_meant_and_what_is_far_is_not() {
        let keys = ["name", "models", "endpoints", "queue", "stock", "max_rate"];
        assert_eq!(nearest("model", &keys), Some("models"));
        assert_eq!(nearest("Queue", &keys), Some("queue"));
        assert_eq!(nearest("max-rate", &keys), Some("max_rate"));
        assert_eq!(nearest("endpoint", &keys), Some("endpoints"));
        assert_eq!(nearest("colour", &keys), None);
        assert_eq!(nearest("x", &keys), None);
    }
}
