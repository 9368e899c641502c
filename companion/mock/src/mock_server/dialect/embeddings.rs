//! /v1/embeddings: vectors that depend on nothing but their place, and never a stream.

use serde_json::{Value, json};

use super::{Answer, Dialect, Sse};

pub(super) struct Embeddings;

const DIMENSIONS: usize = 8;

impl Dialect for Embeddings {
    fn whole(&self, answer: &Answer) -> Value {
        let data: Vec<Value> = (0..answer.inputs)
            .map(|index| {
                let vector = vector(index);
                let embedding = if answer.base64 {
                    json!(base64(&vector))
                } else {
                    json!(vector)
                };
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

    fn open(&self, _: &Answer, _: &mut Sse) {}

    fn token(&self, _: &Answer, _: &str, _: &mut Sse) {}

    fn close(&self, _: &Answer, _: &mut Sse) {}
}

/// A unit vector, another one for each place up to [`DIMENSIONS`].
fn vector(index: usize) -> [f32; DIMENSIONS] {
    std::array::from_fn(|at| if at == index % DIMENSIONS { 1.0 } else { 0.0 })
}

fn base64(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| {
            word << 8 | u32::from(three.get(at).copied().unwrap_or(0))
        });
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            out.push(if place <= three.len() {
                char::from(ALPHABET[six as usize])
            } else {
                '='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, 0.0]), "AACAPwAAAAA=");
        assert_eq!(base64(&[1.0, -2.5, 3.25]), "AACAPwAAIMAAAFBA");
    }
}
