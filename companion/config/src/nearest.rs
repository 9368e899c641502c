//! Suggests the known word that was probably meant by an unknown one.

use strsim::osa_distance;

/// The known word nearest to `written`, if at most a third of its letters differ or if one of the two begins with the other.
pub(super) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_lowercase().replace(['-', ' '], "_");
    let length = written.chars().count();
    known
        .iter()
        .map(|word| (osa_distance(&written, word), *word))
        .filter(|(distance, word)| {
            let is_prefix = length >= 3 && (word.starts_with(&written) || written.starts_with(word));
            is_prefix || *distance * 3 <= length.max(word.chars().count())
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_inserted_removed_replaced_and_swapped_letters() {
        for (one, other, distance) in [
            ("", "", 0),
            ("ttl", "ttl", 0),
            ("tll", "ttl", 1),
            ("tlt", "ttl", 1),
            ("queu", "queue", 1),
            ("colour", "name", 6),
        ] {
            assert_eq!(osa_distance(one, other), distance, "{one} {other}");
            assert_eq!(osa_distance(other, one), distance, "{other} {one}");
        }
    }

    #[test]
    fn near_words_are_suggested_and_far_words_are_not() {
        let keys = ["name", "models", "endpoints", "queue", "stock", "max_rate"];
        assert_eq!(nearest("model", &keys), Some("models"));
        assert_eq!(nearest("Queue", &keys), Some("queue"));
        assert_eq!(nearest("max-rate", &keys), Some("max_rate"));
        assert_eq!(nearest("endpoint", &keys), Some("endpoints"));
        assert_eq!(nearest("colour", &keys), None);
        assert_eq!(nearest("x", &keys), None);
    }
}
