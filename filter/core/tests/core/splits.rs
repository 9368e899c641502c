//! Bodies arrive in arbitrary slices: every split gives the same result, which is that of a simple reference reader.

use std::sync::Arc;

use penstock_filter_core::body::{Body, BodyError, BodyScanner};
use penstock_filter_core::response::{Format, ResponseScanner, ResponseStats};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn scan(parts: &[&[u8]]) -> Result<Body, BodyError> {
    let mut scanner = BodyScanner::new(Arc::from(["user".to_owned()]));
    for part in parts {
        scanner.feed(part)?;
    }
    scanner.finish()
}

/// Scans with prefix hashes. Returns the prompt bytes and the hashes.
fn hashes(parts: &[&[u8]]) -> Result<(u64, Vec<u64>), BodyError> {
    let mut scanner = BodyScanner::new(Arc::from([])).hashing();
    for part in parts {
        scanner.feed(part)?;
    }
    scanner.finish().map(|body| (body.prompt_bytes, body.prefix_hashes))
}

/// A JSON string with every character escaped.
fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn stats(format: Format, parts: &[&[u8]]) -> ResponseStats {
    let mut scanner = ResponseScanner::new(format);
    for part in parts {
        scanner.feed(part);
    }
    scanner.stats()
}

/// Checks that every split in two, and single bytes, give the same result.
fn for_splits<T: PartialEq + std::fmt::Debug>(bytes: &[u8], read: impl Fn(&[&[u8]]) -> T) {
    let whole = read(&[bytes]);
    for position in 0..=bytes.len() {
        let (first, second) = bytes.split_at(position);
        assert_eq!(read(&[first, second]), whole, "split at {position}");
    }
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
}

fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![any::<String>(), "[a-z\\\\\"\n\u{e9}\u{1f600}]{0,20}", "[ -~]{0,40}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key(), inner), 0..4).prop_map(|pairs| Value::from(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "model",
        "user",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "best_of",
        "prompt_embeds",
        "messages",
        "prompt",
        "input",
        "content",
        "role",
        "type",
        "text",
        "url",
        "image_url",
        "data",
        "tools",
        "usage",
        "choices",
        "delta",
        "message",
        "response",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "prompt_tokens_details",
    ];
    prop_oneof![4 => proptest::sample::select(KNOWN).prop_map(str::to_owned), 1 => any::<String>()]
}

fn request() -> impl Strategy<Value = Value> {
    vec((key(), value()), 0..6).prop_flat_map(|pairs| {
        let map: Map<_, _> = pairs.into_iter().collect();
        prop_oneof![
            1 => Just(Value::from(map.clone())),
            3 => "[a-z]{1,9}".prop_map(move |model| {
                let mut map = map.clone();
                map.insert("model".into(), model.into());
                Value::from(map)
            }),
        ]
    })
}

/// The expected fields, from the parsed tree; `None`: the scanner must refuse.
fn expected_body(document: &Value) -> Option<Body> {
    let map = document.as_object()?;
    let model = match map.get("model") {
        None | Some(Value::Null) => "",
        Some(model) => model.as_str().filter(|model| model.len() <= 256)?,
    };
    let limits = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    let user = map.get("user").and_then(Value::as_str).filter(|user| !user.is_empty());
    let mut prompt_bytes = 0;
    for key in ["messages", "system", "instructions", "suffix", "tools", "functions", "prompt", "input"] {
        if let Some(value) = map.get(key) {
            weigh(value, Some(u64::MAX), ["prompt", "input"].contains(&key), &mut prompt_bytes);
        }
    }
    Some(Body {
        model: model.to_owned(),
        model_range: 0..0,
        stream: map.get("stream") == Some(&json!(true)),
        has_stream_options: map.contains_key("stream_options"),
        is_background: map.get("background") == Some(&json!(true)),
        max_tokens: limits.iter().filter_map(|key| whole(map.get(*key)?)).min(),
        sequences: sequences(map),
        prompt_bytes,
        prefix_hashes: Vec::new(),
        identities: vec![user.map(|user| user[..user.floor_char_boundary(256)].to_owned())],
    })
}

/// A whole number, as `12` or `12.0`.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let text = value.is_f64().then(|| value.to_string())?;
        text.strip_suffix(".0")?.parse().ok()
    })
}

/// Prompts times choices, of a body without an API.
fn sequences(map: &Map<String, Value>) -> u64 {
    let choices = ["n", "best_of"].iter().filter_map(|key| match map.get(*key)? {
        Value::String(text) if text.len() <= 32 => text.trim().parse().ok(),
        value => value.as_u64(),
    });
    let items = |key: &str| {
        let list = map.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().filter(|item| item.is_string() || item.is_array() || item.is_object()).count() as u64
    };
    let prompts = items("prompt").max(items("input")) + items("prompt_embeds");
    prompts.max(1).saturating_mul(choices.max().unwrap_or(1).max(1)).min(16_384)
}

fn weigh(value: &Value, cap: Option<u64>, ids: bool, sum: &mut u64) {
    match value {
        Value::String(text) => *sum += cap.map_or(0, |cap| (text.len() as u64).min(cap)),
        Value::Array(items) => {
            for item in items {
                if item.is_number() && ids && cap == Some(u64::MAX) {
                    *sum += 4;
                }
                weigh(item, cap, ids, sum);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                let cap = cap.and_then(|cap| match key.as_str() {
                    "role" | "type" => None,
                    "url" | "image_url" | "data" => Some(4_096),
                    _ => Some(cap),
                });
                weigh(value, cap, ids, sum);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

proptest! {
    #[test]
    fn bodies_give_the_same_fields_for_every_split(document in request(), pretty in any::<bool>()) {
        let bytes = if pretty { serde_json::to_vec_pretty(&document) } else { serde_json::to_vec(&document) }.unwrap();
        let mut body = scan(&[&bytes]).ok();
        if let Some(body) = &mut body {
            let range = std::mem::take(&mut body.model_range);
            let found = &bytes[range.start as usize..range.end as usize];
            let found: Option<String> = serde_json::from_slice(found).ok();
            prop_assert_eq!(found.unwrap_or_default(), body.model.as_str());
        }
        prop_assert_eq!(body, expected_body(&document), "{}", String::from_utf8_lossy(&bytes));
        for_splits(&bytes, scan);
    }

    #[test]
    fn hashes_depend_only_on_the_decoded_text(
        texts in vec("(?s).{0,400}", 1..5), piece in 1_usize..700, other in "[a-z]{1,9}",
    ) {
        let messages: Vec<_> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let plain = json!({"model": "m", "messages": messages}).to_string();
        let written: Vec<_> = texts.iter().map(|text| format!(r#"{{"content" : "{}","role":"{other}"}}"#, escaped(text))).collect();
        let escapes = format!(r#"{{"messages":[{}], "n":1,"model":"{other}"}}"#, written.join(", "));
        let (bytes, expected) = hashes(&[plain.as_bytes()]).expect("a body");
        prop_assert_eq!(bytes, texts.iter().map(|text| text.len() as u64).sum::<u64>());
        let reached = (0..32).filter(|k| (256.0 * 2_f64.powf(f64::from(*k) / 2.0)).floor() as u64 <= bytes).count();
        prop_assert_eq!(expected.len(), reached);
        for body in [plain.as_bytes(), escapes.as_bytes()] {
            for size in [1, piece, body.len()] {
                let found = hashes(&body.chunks(size).collect::<Vec<_>>());
                prop_assert_eq!(found, Ok((bytes, expected.clone())), "in pieces of {}", size);
            }
        }
    }

    /// With one byte replaced, or the end cut off, the scanner accepts what serde accepts, and a little more.
    #[test]
    fn malformed_bodies_are_refused_as_by_serde(
        document in request(), position in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = serde_json::to_vec(&document).unwrap();
        let position = position.index(bytes.len());
        if cut { bytes.truncate(position) } else { bytes[position] = byte }
        let is_syntax = matches!(scan(&[&bytes]), Err(BodyError::Syntax(..) | BodyError::Empty));
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(_) => prop_assert!(!is_syntax),
            Err(error) => {
                // The scanner may refuse the document earlier because it isn't an object or has a bad model.
                let taken = scan(&[&bytes]).is_ok();
                prop_assert!(!taken || error.to_string().contains("number out of range"), "{}", error);
            }
        }
        for_splits(&bytes, scan);
    }

    #[test]
    fn arbitrary_bytes_give_the_same_result_for_every_split(bytes in vec(any::<u8>(), 0..60)) {
        for_splits(&bytes, scan);
        for_splits(&bytes, |parts| stats(Format::Json, parts));
        for_splits(&bytes, |parts| stats(Format::Sse, parts));
    }

    #[test]
    fn event_streams_give_the_same_stats_for_every_split(
        events in vec((prop_oneof![value(), chunk()], "(\n|\r|\r\n)", any::<bool>()), 0..5), tail in "[\\x00-\\x7f]{0,9}",
    ) {
        let mut bytes = String::new();
        for (event, end, space) in &events {
            let space = if *space { " " } else { "" };
            bytes += &format!("event: e{end}data:{space}{event}{end}{end}");
        }
        bytes += &tail;
        for_splits(bytes.as_bytes(), |parts| stats(Format::Sse, parts));
        if tail.is_empty() {
            let texts = events.iter().filter(|(event, ..)| event["choices"][0]["delta"]["content"] == "x").count();
            prop_assert!(stats(Format::Sse, &[bytes.as_bytes()]).text_events >= texts as u64);
        }
    }

    /// A scanner that gets a whole event compares it with the one before. With single bytes it never can.
    #[test]
    fn alike_events_give_the_same_stats_in_pieces_of_any_size(
        events in vec(alike(), 1..12), end in "(\n|\r|\r\n)", piece in 1_usize..400,
        damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = Vec::new();
        for event in &events {
            bytes.extend_from_slice(format!("{}{end}{end}", event.replace('|', &end)).as_bytes());
        }
        if let Some((position, byte)) = damage {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        let expected = stats(Format::Sse, &single);
        let one_event_each: Vec<_> = bytes.split_inclusive(|byte| *byte == b'}').collect();
        prop_assert_eq!(&stats(Format::Sse, &[&bytes]), &expected);
        prop_assert_eq!(&stats(Format::Sse, &bytes.chunks(piece).collect::<Vec<_>>()), &expected);
        prop_assert_eq!(&stats(Format::Sse, &one_event_each), &expected);
        if damage.is_none() {
            let texts = events.iter().filter(|event| event.contains("TEXT")).count();
            prop_assert_eq!(expected.text_events, texts as u64);
        }
    }

    #[test]
    fn usage_is_found_in_any_document(document in value(), prompt in any::<u64>(), output in any::<u64>(), cached in any::<u64>()) {
        let body = json!({
            "a": document, "usage": {"completion_tokens": output, "x": document, "prompt_tokens": prompt,
                                     "prompt_tokens_details": {"cached_tokens": cached}}, "z": document,
        });
        let usage = stats(Format::Json, &[body.to_string().as_bytes()]).usage;
        prop_assert_eq!((usage.prompt, usage.output, usage.cached), (Some(prompt), Some(output), Some(cached)));
    }
}

/// An event of one of a few forms; `|` stands for the end of a line, and each non-empty text has `TEXT`.
fn alike() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        Just(String::new()),
        "TEXT[a-z \u{e4}\u{1f600}]{0,20}",
        Just(r#"\u00e4TEXT\"\\\n\ud83d"#.to_owned()),
        Just("}TEXT{".to_owned()),
    ];
    (text, 0..9_u8, 0..3_u8).prop_map(|(text, form, number)| match form {
        0 => format!(r#"event: delta|data: {{"delta":{{"text":"{text}"}}}}"#),
        1 => format!(r#"data:{{"choices":[{{"delta":{{"content":"{text}"}}}}],"usage":null}}"#),
        // Two strings of text, of which the first has none, and token counts, are read each time.
        2 => format!(r#"data: {{"delta":{{"thinking":"","text":"{text}"}}}}"#),
        3 => format!(r#"data: {{"delta":{{"text":"{text}"}},"usage":{{"output_tokens":{number}}}}}"#),
        4 => format!(r#"data: {{"n":{number},|data: "delta":{{"text":"{text}"}}}}|id: 7"#),
        _ => format!(r#"data: {{"id":"x","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#),
    })
}

fn chunk() -> impl Strategy<Value = Value> {
    any::<bool>().prop_map(|text| json!({"choices": [{"delta": {"content": if text { "x" } else { "" }}}]}))
}
