//! Hexadecimal digits.

/// A digit of 4 bits.
pub(crate) fn hex_digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

/// The byte of two digits; `None` if they aren't hexadecimal.
pub(crate) fn hex_byte(pair: [u8; 2]) -> Option<u8> {
    let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
    u8::try_from((high? << 4) | low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn hex_digits_round_trip() {
        for value in 0..=u8::MAX {
            let text: String = [hex_digit(value >> 4), hex_digit(value & 15)]
                .into_iter()
                .collect();
            assert_eq!(text, format!("{value:02x}"));
            let pair = text.as_bytes().first_chunk().copied().unwrap();
            assert_eq!(hex_byte(pair), Some(value));
        }
    }
}
