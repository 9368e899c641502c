//! Hexadecimal digits.

/// Appends two digits for each byte.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    let mut digits = vec![[0; 2]; bytes.len()];
    for (pair, byte) in digits.iter_mut().zip(bytes) {
        *pair = [hex_digit(byte >> 4), hex_digit(byte & 15)];
    }
    text.push_str(core::str::from_utf8(digits.as_flattened()).unwrap_or_default());
}

/// A digit of 4 bits. Without a branch or a table, so that the compiler makes many digits at a time.
const fn hex_digit(nibble: u8) -> u8 {
    /// Characters between `9` and `a`.
    const GAP: u8 = 39;
    b'0'.wrapping_add(nibble).wrapping_add((nibble / 10).wrapping_mul(GAP))
}

/// The byte of two digits; `None` if they aren't hexadecimal.
pub(crate) fn hex_byte(pair: [u8; 2]) -> Option<u8> {
    let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
    u8::try_from((high? << 4) | low?).ok()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn hex_digits_round_trip() {
        for value in 0..=u8::MAX {
            let mut text = String::from("-");
            push_hex(&mut text, &[value]);
            assert_eq!(text, format!("-{value:02x}"));
            let pair = text.as_bytes().last_chunk().copied().unwrap();
            assert_eq!(hex_byte(pair), Some(value));
        }
    }
}
