//! Reads a number that lies whole in a slice. An answer with embeddings is almost nothing else.

/// Splits off a number: its value, if that is a whole number of 64 bits, and the bytes that follow it. `None`: the number may go
/// on in the next slice, or is malformed.
pub(super) fn split_number(bytes: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let (is_negative, unsigned) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    let (digits, rest) = match unsigned {
        // No other digit follows a leading zero.
        [b'0', ..] => unsigned.split_at_checked(1)?,
        _ => split_digits(unsigned)?,
    };
    let (has_fraction, rest) = match rest {
        [b'.', rest @ ..] => {
            let (fraction, rest) = split_digits(rest)?;
            (fraction.iter().any(|digit| *digit != b'0'), rest)
        }
        _ => (false, rest),
    };
    let (has_exponent, rest) = match rest {
        [b'e' | b'E', b'+' | b'-', rest @ ..] | [b'e' | b'E', rest @ ..] => (true, split_digits(rest)?.1),
        _ => (false, rest),
    };
    if rest.is_empty() {
        return None;
    }
    let is_whole = !is_negative && !has_fraction && !has_exponent;
    Some((if is_whole { value(digits) } else { None }, rest))
}

/// Splits off the leading digits; `None`: there are none.
fn split_digits(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (words, _) = bytes.as_chunks::<8>();
    let whole = words.iter().take_while(|word| are_digits(**word)).count();
    let start = whole.saturating_mul(8);
    let (_, tail) = bytes.split_at_checked(start)?;
    let end = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length = start.saturating_add(end);
    if length == 0 {
        return None;
    }
    bytes.split_at_checked(length)
}

/// Whether eight bytes are digits: 0x30 to 0x39. The upper half of each says 3, and still does if 6 is added.
fn are_digits(word: [u8; 8]) -> bool {
    const UPPER: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    const THREES: u64 = 0x3030_3030_3030_3030;
    const SIXES: u64 = 0x0606_0606_0606_0606;
    let word = u64::from_le_bytes(word);
    // The sum of a byte with 3 as its upper half carries nothing over.
    word & UPPER == THREES && word.wrapping_add(SIXES) & UPPER == THREES
}

fn value(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0_u64, |value, byte| value.checked_mul(10)?.checked_add(u64::from(byte.wrapping_sub(b'0'))))
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn number_ends_where_the_grammar_says() {
        for (text, whole, rest) in [
            ("0,", Some(0), ","),
            ("7]", Some(7), "]"),
            ("01,", Some(0), "1,"),
            ("12345678,", Some(12_345_678), ","),
            ("18446744073709551615 ", Some(u64::MAX), " "),
            ("18446744073709551616 ", None, " "),
            ("-0}", None, "}"),
            ("-12.5,", None, ","),
            ("12.0,", Some(12), ","),
            ("0.000]", Some(0), "]"),
            ("12.01,", None, ","),
            ("12.0e1,", None, ","),
            ("-12.0,", None, ","),
            ("0.12345678901234567,", None, ","),
            ("1e5,", None, ","),
            ("1E+05]", None, "]"),
            ("-1.25e-3x", None, "x"),
            ("1..", None, "?"),
        ] {
            let expected = (rest != "?").then_some((whole, rest.as_bytes()));
            assert_eq!(split_number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn number_at_the_end_of_the_slice_may_go_on() {
        let text = b"-123456789.123456789e-12,";
        for end in 0..text.len() {
            assert_eq!(split_number(&text[..end]), None, "{end}");
        }
        assert_eq!(split_number(text), Some((None, &b","[..])));
    }

    #[test]
    fn eight_bytes_are_digits_only_if_each_is() {
        for byte in 0..=u8::MAX {
            for position in 0..8 {
                let mut word = *b"90909090";
                word[position] = byte;
                assert_eq!(are_digits(word), byte.is_ascii_digit(), "{byte:#x} at {position}");
            }
        }
    }
}
