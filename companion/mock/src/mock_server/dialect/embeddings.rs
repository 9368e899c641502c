//! Responses of /v1/embeddings: vectors that depend only on the input's index. Embeddings are never streamed.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse};

pub(super) struct Embeddings;

const DIMENSIONS: usize = 8;

impl Dialect for Embeddings {
    fn complete(&self, answer: &Answer) -> Value {
        let data: Vec<Value> = (0..answer.inputs)
            .map(|index| {
                let vector = vector(index);
                let embedding = if answer.base64 { json!(base64(&vector)) } else { json!(vector) };
                json!({"object": "embedding", "index": index, "embedding": embedding})
            })
            .collect();
        json!({
            "object": "list",
            "data": data,
            "model": answer.model,
            "usage": {"prompt_tokens": answer.input, "total_tokens": answer.input},
        })
    }

    fn start(&self, _: &Answer, _: &mut Sse) {}

    fn token(&self, _: &Answer, _: &str, _: &mut Sse) {}

    fn end(&self, _: &Answer, _: &mut Sse) {}
}

/// The unit vector of this index modulo [`DIMENSIONS`].
fn vector(index: usize) -> [f32; DIMENSIONS] {
    std::array::from_fn(|dimension| if dimension == index % DIMENSIONS { 1.0 } else { 0.0 })
}

fn base64(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            (0..3).fold(0_u32, |word, index| word << 8 | u32::from(chunk.get(index).copied().unwrap_or(0)));
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            out.push(if digit <= chunk.len() { char::from(ALPHABET[value as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_standard_encoding() {
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, 0.0]), "AACAPwAAAAA=");
        assert_eq!(base64(&[1.0, -2.5, 3.25]), "AACAPwAAIMAAAFBA");
    }
}
