//! Envoy's dynamic metadata as text: values that another filter, for example JWT authentication, has attached to a request.
//!
//! Envoy passes a value as bytes without its type: a string as it is, a number as the eight bytes of a double, a boolean as
//! one byte. So a value that isn't text (invalid UTF-8 or control characters) is taken for a number or a boolean by its
//! length. A number whose eight bytes happen to be text is read as text; this can't happen to whole numbers below 2^45,
//! because their first bytes are zero. Lists and objects have no text.

use penstock_wire::limits::NAME_BYTES_MAX;

use crate::headers::bounded;

/// 2^53: whole numbers up to here are exact, and are written without an exponent.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Splits a path at `/`. In a part, `~1` stands for `/` and `~0` for `~`, as in JSON pointers (RFC 6901).
pub(crate) fn keys(path: &str) -> Vec<String> {
    path.split('/').map(|key| key.replace("~1", "/").replace("~0", "~")).collect()
}

/// A value as text of at most `NAME_BYTES_MAX` bytes. `None`: it is empty, or isn't a string, number or boolean.
pub(crate) fn text(value: &[u8]) -> Option<String> {
    if core::str::from_utf8(value).is_ok_and(|text| !text.contains(char::is_control)) {
        return bounded(value, NAME_BYTES_MAX);
    }
    match *value {
        [0] => Some("false".to_owned()),
        [1] => Some("true".to_owned()),
        [a, b, c, d, e, f, g, h] => number(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

fn number(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    // Writes -0 as 0.
    let value = if value == 0.0 { 0.0 } else { value };
    if value.abs() <= WHOLE_MAX { Some(value.to_string()) } else { Some(format!("{value:e}")) }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn strings_are_kept_and_trimmed() {
        for (value, expected) in [
            ("acme", Some("acme")),
            ("eightchr", Some("eightchr")),
            ("\u{43f}\u{43e}\u{43b}\u{44c}", Some("\u{43f}\u{43e}\u{43b}\u{44c}")),
            (" spaced ", Some("spaced")),
            ("1", Some("1")),
            ("", None),
            ("  ", None),
        ] {
            assert_eq!(text(value.as_bytes()).as_deref(), expected, "{value}");
        }
        assert_eq!(text("x".repeat(999).as_bytes()).map(|text| text.len()), Some(NAME_BYTES_MAX));
    }

    #[test]
    fn numbers_and_booleans_are_written_as_in_json() {
        for (value, expected) in [
            (0.0, Some("0")),
            (-0.0, Some("0")),
            (1.0, Some("1")),
            (12_345.0, Some("12345")),
            (-7.0, Some("-7")),
            (0.25, Some("0.25")),
            (f64::from(u32::MAX), Some("4294967295")),
            (35_184_372_088_831.0, Some("35184372088831")),
            (1e300, Some("1e300")),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(text(&f64::to_le_bytes(value)).as_deref(), expected, "{value}");
        }
        assert_eq!(text(&[0]).as_deref(), Some("false"));
        assert_eq!(text(&[1]).as_deref(), Some("true"));
    }

    #[test]
    fn lists_objects_and_invalid_utf8_have_no_text() {
        for value in [&[0; 4][..], &[1, 0, 0, 0, 3, 0, 0, 0, 1], b"a\0b", b"\xff\xfe", &[2]] {
            assert_eq!(text(value), None, "{value:?}");
        }
    }

    #[test]
    fn path_may_contain_escaped_slashes() {
        assert_eq!(
            keys("envoy.filters.http.jwt_authn/payload/sub"),
            ["envoy.filters.http.jwt_authn", "payload", "sub"]
        );
        assert_eq!(keys("n/p/https:~1~1example.com~1tenant"), ["n", "p", "https://example.com/tenant"]);
        assert_eq!(keys("a/~01"), ["a", "~1"]);
    }
}
