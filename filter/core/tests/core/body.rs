//! The fields that the body scanner extracts, and the messages with which it refuses a body.

use std::sync::Arc;

use penstock_filter_core::body::{Body, BodyError, BodyScanner};
use penstock_wire::Api;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn scan(body: &[u8]) -> Result<Body, BodyError> {
    let mut scanner = BodyScanner::new(Arc::from(["user".to_owned(), "tenant".to_owned()]));
    scanner.feed(body)?;
    scanner.finish()
}

fn refusal(body: &[u8]) -> String {
    scan(body).expect_err("refused").to_string()
}

#[test]
fn chat_request_is_scanned() {
    let body = scan(
        br#"{"model": "m-1", "user": "bob", "stream": true, "max_tokens": 99, "max_completion_tokens": 64,
             "temperature": 0.5, "stop": ["x"], "metadata": {"model": "no", "user": "no"},
             "messages": [{"role": "system", "content": "be brief"},
                          {"role": "user", "content": [{"type": "text", "text": "\u00e4\ud83d\ude00"},
                              {"type": "image_url", "image_url": {"url": "data:xyz", "detail": "high"}}]},
                          "plain"]}"#,
    );
    assert_eq!(
        body,
        Ok(Body {
            model: "m-1".into(),
            model_range: 10..15,
            stream: true,
            has_stream_options: false,
            is_background: false,
            max_tokens: Some(64),
            sequences: 1,
            prompt_bytes: 8 + (2 + 4) + 8 + 5,
            prefix_hashes: Vec::new(),
            identities: vec![Some("bob".into()), None],
        })
    );
}

#[test]
fn background_is_read_at_the_top_level_and_the_last_one_counts() {
    for (body, expected) in [
        (&br#"{"model":"m","background":true}"#[..], true),
        (br#"{"background":true,"model":"m","input":"x"}"#, true),
        (br#"{"model":"m","background":false}"#, false),
        (br#"{"model":"m","background":true,"background":null}"#, false),
        (br#"{"model":"m","background":"true"}"#, false),
        (br#"{"model":"m","metadata":{"background":true}}"#, false),
    ] {
        let text = String::from_utf8_lossy(body);
        assert_eq!(scan(body).expect("JSON").is_background, expected, "{text}");
    }
}

#[test]
fn prompts_of_the_other_apis_are_counted() {
    for (body, bytes) in [
        (r#"{"model":"m","prompt":"four"}"#, 4),
        (r#"{"model":"m","prompt":["four","five5"]}"#, 9),
        (r#"{"model":"m","prompt":[[1,2],[3]]}"#, 12),
        (r#"{"model":"m","input":[1,2,3]}"#, 12),
        (r#"{"model":"m","input":"abc","instructions":"de"}"#, 5),
        (r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"abc"}]}]}"#, 3),
        (
            r#"{"model":"m","system":[{"type":"text","text":"sys"}],"messages":[{"role":"user","content":"hi"}]}"#,
            5,
        ),
        (r#"{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"does"}}]}"#, 5),
        (
            r#"{"model":"m","messages":[{"content":[{"source":{"type":"base64","data":"abcd"}}, {"text":"x"}]}]}"#,
            5,
        ),
        (r#"{"model":"m","messages":[{"content":"a"}],"other":{"content":"no"}}"#, 1),
    ] {
        assert_eq!(scan(body.as_bytes()).unwrap().prompt_bytes, bytes, "{body}");
    }
}

fn sequences(api: Api, body: &str) -> u64 {
    let mut scanner = BodyScanner::new(Arc::from([])).of_api(api);
    scanner.feed(body.as_bytes()).expect("JSON");
    scanner.finish().expect("a body").sequences
}

#[test]
fn sequences_are_prompts_times_choices() {
    for (body, count) in [
        (r#"{"model":"m","prompt":"x"}"#, 1),
        (r#"{"model":"m","prompt":["x"]}"#, 1),
        (r#"{"model":"m","prompt":["x","y","z"]}"#, 3),
        (r#"{"model":"m","prompt":[]}"#, 1),
        (r#"{"model":"m","prompt":[1,2,3]}"#, 1),
        (r#"{"model":"m","prompt":[[1,2],[3],[]]}"#, 3),
        (r#"{"model":"m","prompt":["x",[1,[2]],{"y":["z"]}]}"#, 3),
        (r#"{"model":"m","n":4}"#, 4),
        (r#"{"model":"m","n":4,"best_of":9}"#, 9),
        (r#"{"best_of":2,"model":"m","n":4}"#, 4),
        (r#"{"model":"m","n":3,"prompt":["x","y"]}"#, 6),
        (r#"{"model":"m","prompt_embeds":["x","y"],"prompt":["z"],"n":2}"#, 6),
        (r#"{"model":"m","n":"8"}"#, 8),
        (r#"{"model":"m","n":" 8 "}"#, 8),
        (r#"{"model":"m","\u006e":5}"#, 5),
        // The last of several equal keys counts.
        (r#"{"model":"m","n":64,"n":2}"#, 2),
        (r#"{"model":"m","n":64,"n":null}"#, 1),
        (r#"{"model":"m","prompt":["x","y"],"prompt":["z"]}"#, 1),
        (r#"{"model":"m","prompt":["x","y"],"prompt":"z"}"#, 1),
        // Elsewhere these keys mean something else.
        (r#"{"model":"m","metadata":{"n":9,"prompt":["x","y"]},"stop":["x","y"]}"#, 1),
        (r#"{"model":"m","messages":[{"content":"x"},{"content":"y"}]}"#, 1),
        // No server takes these.
        (r#"{"model":"m","n":0}"#, 1),
        (r#"{"model":"m","n":-5}"#, 1),
        (r#"{"model":"m","n":"many"}"#, 1),
        (r#"{"model":"m","n":[8]}"#, 1),
        (r#"{"model":"m","n":{"n":8}}"#, 1),
        (r#"{"model":"m","n":true}"#, 1),
        (r#"{"model":"m","n":1000000000}"#, 16_384),
        (r#"{"model":"m","n":18446744073709551615,"prompt":["x","y"]}"#, 16_384),
    ] {
        assert_eq!(sequences(Api::Completions, body), count, "{body}");
    }
}

#[test]
fn each_api_has_its_own_sequences() {
    let body = r#"{"model":"m","n":3,"best_of":5,"input":["a","b"],"prompt":["a","b"],"messages":[{},{}]}"#;
    for (api, count) in [
        (Api::ChatCompletions, 5),
        (Api::Completions, 10),
        (Api::Embeddings, 2),
        (Api::Responses, 1),
        (Api::Messages, 1),
    ] {
        assert_eq!(sequences(api, body), count, "{api:?}");
    }
    for (input, count) in [
        (r#""x""#, 1),
        (r#"["x","y"]"#, 2),
        ("[1,2]", 1),
        ("[[1],[2],[3]]", 3),
        (r#"[{"content":[{"type":"text"}]},{"content":[]}]"#, 2),
    ] {
        let body = format!(r#"{{"model":"m","input":{input}}}"#);
        assert_eq!(sequences(Api::Embeddings, &body), count, "{input}");
    }
}

#[test]
fn attachments_are_capped() {
    let data = "A".repeat(100_000);
    let body = format!(
        r#"{{"model":"m","messages":[{{"content":[{{"image_url":{{"url":"{data}"}}}},{{"text":"{data}"}}]}}]}}"#
    );
    assert_eq!(scan(body.as_bytes()).unwrap().prompt_bytes, 4_096 + 100_000);
}

#[test]
fn escaped_keys_are_the_same_keys() {
    assert_eq!(scan(br#"{"\u006dodel":"m"}"#).unwrap().model, "m");
    assert_eq!(
        refusal(br#"{"model":"a","m\u006fdel":"b"}"#),
        "The body has \"model\" twice, the second time at byte 24: send it once."
    );
}

#[test]
fn last_of_several_equal_keys_counts() {
    let body =
        scan(br#"{"model":"m","user":"a","stream":true,"user":null,"tenant":"t","stream":false}"#).unwrap();
    assert_eq!(body.identities, [None, Some("t".into())]);
    assert!(!body.stream);
}

#[test]
fn identity_may_be_one_level_below_the_top() {
    let keys: [String; 3] = ["metadata.user_id", "user", "metadata.org.id"].map(str::to_owned);
    let identities = |body: &str| {
        let mut scanner = BodyScanner::new(keys.clone().into());
        scanner.feed(body.as_bytes()).unwrap();
        scanner.finish().unwrap().identities
    };
    let one = |value: &str| [Some(value.to_owned()), None, None];
    assert_eq!(identities(r#"{"model":"m","metadata":{"a":1,"user_id":"u1","b":"x"}}"#), one("u1"));
    assert_eq!(identities(r#"{"metadata":{"user_id":"u1","b":"x"},"model":"m"}"#), one("u1"));
    // A key with a dot may be at the top itself.
    assert_eq!(identities(r#"{"model":"m","metadata.user_id":"u2"}"#), one("u2"));
    assert_eq!(identities(r#"{"model":"m","metadata":{"org.id":"o"}}"#), [None, None, Some("o".into())]);
    assert_eq!(identities(r#"{"model":"m","metadata":{"user_id":"a"},"user":"b"}"#)[1].as_deref(), Some("b"));
    // The last of several equal keys counts.
    assert_eq!(identities(r#"{"model":"m","metadata":{"user_id":"a"},"metadata":{}}"#), [None, None, None]);
    assert_eq!(identities(r#"{"model":"m","metadata":{"user_id":"a","user_id":"b"}}"#), one("b"));
    for other in [
        r#"{"model":"m","metadata":{"user_id":["u"]}}"#,
        r#"{"model":"m","metadata":[{"user_id":"u"}]}"#,
        r#"{"model":"m","metadata":{"x":{"user_id":"u"}}}"#,
        r#"{"model":"m","user_id":"u","metadata":"u"}"#,
        r#"{"model":"m","user":["u"],"meta":{"user_id":"u"}}"#,
    ] {
        assert_eq!(identities(other), [None, None, None], "{other}");
    }
}

#[test]
fn long_identities_are_cut_and_long_models_are_refused() {
    let long = "ü".repeat(200);
    let body = scan(format!(r#"{{"model":"m","user":"{long}"}}"#).as_bytes()).unwrap();
    assert_eq!(body.identities[0].as_deref(), Some("ü".repeat(128).as_str()));
    assert!(matches!(scan(format!(r#"{{"model":"{long}"}}"#).as_bytes()), Err(BodyError::BadModel(_))));
}

#[test]
fn longer_key_with_the_same_prefix_is_another_key() {
    let key = "model".to_owned() + &"x".repeat(500);
    assert_eq!(scan(format!(r#"{{"{key}":"no","model":"m"}}"#).as_bytes()).unwrap().model, "m");
}

#[test]
fn lone_surrogates_become_the_replacement_character() {
    assert_eq!(
        scan(br#"{"model":"m","prompt":"\ud83dx\ude00\ud83d\ud83d\ude00"}"#).unwrap().prompt_bytes,
        3 + 1 + 3 + 3 + 4
    );
}

/// Bodies that are refused, with the messages to the client.
const REFUSED: &[(&[u8], &str)] = &[
    (b"", "The body is empty: send a JSON object that names a \"model\"."),
    (b"   ", "The body is not JSON: it ends before it is complete, at byte 3."),
    (b"[1]", "The body must be a JSON object that names a \"model\"."),
    (b"\"model\"", "The body must be a JSON object that names a \"model\"."),
    (br#"{"model":"m""#, "The body is not JSON: it ends before it is complete, at byte 12."),
    (br#"{"model":"m"} x"#, "The body is not JSON: there is more after the end of the object, at byte 14."),
    (br#"{"model":"m",}"#, "The body is not JSON: expected a key in double quotes, at byte 13."),
    (br#"{"model" "m"}"#, "The body is not JSON: expected `:` after a key, at byte 9."),
    (br#"{"model":m}"#, "The body is not JSON: expected a value, at byte 9."),
    (br#"{"a":[1 2]}"#, "The body is not JSON: expected `,` or the end of the object or array, at byte 8."),
    (br#"{"a":01}"#, "The body is not JSON: expected `,` or the end of the object or array, at byte 6."),
    (br#"{"a":-}"#, "The body is not JSON: a number is malformed, at byte 6."),
    (br#"{"a":nul}"#, "The body is not JSON: expected `true`, `false` or `null`, at byte 8."),
    (br#"{"a":"\x"}"#, "The body is not JSON: an escape in a string is malformed, at byte 7."),
    (b"{\"a\":\"\n\"}", "The body is not JSON: a control character in a string isn't escaped, at byte 6."),
    (b"{\"a\":\"\xff\"}", "The body is not JSON: a string isn't UTF-8, at byte 6."),
    (b"{\"a\":\"\xc3(\"}", "The body is not JSON: a string isn't UTF-8, at byte 7."),
    (b"{\"a\":\"\xed\xa0\x80\"}", "The body is not JSON: a string isn't UTF-8, at byte 7."),
    (br#"{"model":1}"#, "\"model\" must be a string of 1 to 256 bytes; it isn't, at byte 10."),
    (br#"{"model":true}"#, "\"model\" must be a string of 1 to 256 bytes; it isn't, at byte 12."),
    (br#"{"model":["m"]}"#, "\"model\" must be a string of 1 to 256 bytes; it isn't, at byte 9."),
    (b"\x1f\x8b\x08", "The body is not JSON: expected a value, at byte 0."),
];

#[test]
fn a_body_may_name_no_model() {
    for body in
        ["{}", r#"{"model":null}"#, r#"{"model":""}"#, r#"{"messages":[{"content":"\"model\":\"m\""}]}"#]
    {
        let body = scan(body.as_bytes()).expect("a body");
        assert_eq!((body.model.as_str(), body.model_range), ("", 0..0));
    }
}

fn scan_other(content_type: &str, body: &[u8]) -> Result<Body, BodyError> {
    let keys: Arc<[String]> = ["user".to_owned()].into();
    let mut scanner = BodyScanner::new(keys).of_api(Api::Other).of_any_type(Some(content_type.as_bytes()));
    scanner.feed(body)?;
    scanner.finish()
}

#[test]
fn every_text_counts_in_a_body_of_one_engines_api() {
    let json = "application/json";
    let text = scan_other(
        json,
        br#"{"text":"12345","sampling_params":{"max_new_tokens":7,"n":2},"model":"m","type":"x"}"#,
    );
    let text = text.expect("a body");
    assert_eq!((text.prompt_bytes, text.max_tokens, text.sequences), (5, Some(7), 2));
    let many =
        scan_other(json, br#"{"text":["ab","c"],"n_predict":3,"max_tokens":9,"user":"u"}"#).expect("a body");
    assert_eq!((many.prompt_bytes, many.max_tokens, many.sequences), (4, Some(9), 2));
    assert_eq!(many.identities, [Some("u".to_owned())]);
    let ids = scan_other(json, br#"{"input_ids":[[1,2,3],[4]]}"#).expect("a body");
    assert_eq!((ids.prompt_bytes, ids.sequences), (16, 2));
    let image = "A".repeat(100_000);
    let image =
        scan_other(json, format!(r#"{{"text":"a","image_data":["{image}"]}}"#).as_bytes()).expect("a body");
    assert_eq!(image.prompt_bytes, 1 + 4_096);
    // In the common APIs these keys mean nothing.
    assert_eq!(scan(br#"{"model":"m","max_new_tokens":1,"text":"x"}"#).expect("a body").max_tokens, None);
}

#[test]
fn what_a_server_may_read_as_json_is_read_whatever_its_type() {
    for content_type in ["application/json", "text/plain", "multipart/form-data; boundary=b", ""] {
        let body = scan_other(content_type, br#" {"model":"m","prompt":"abc"}"#).expect("a body");
        assert_eq!((body.model.as_str(), body.prompt_bytes), ("m", 3), "{content_type}");
        assert!(scan_other(content_type, br#"{"model":"m"} x"#).is_err(), "{content_type}");
    }
    for (content_type, body) in
        [("audio/wav", &b"RIFF"[..]), ("application/json", b"[1]"), ("text/plain", b"model")]
    {
        let body = scan_other(content_type, body).expect("it is left to the server");
        assert_eq!((body.model.as_str(), body.sequences, body.identities.len()), ("", 1, 1));
    }
    assert!(scan_other("application/json", b"RIFF").is_err());
    assert_eq!(scan_other("audio/wav", b""), Err(BodyError::Empty));
}

#[test]
fn refusals_name_the_problem_and_its_position() {
    for (body, message) in REFUSED {
        assert_eq!(refusal(body), *message, "{}", String::from_utf8_lossy(body));
    }
    let deep = [br#"{"model":"m","x":"#.as_slice(), &[b'['; 200]].concat();
    assert_eq!(
        refusal(&deep),
        "The body is not JSON: objects and arrays are nested deeper than 127 levels, at byte 143."
    );
}

fn hashes(body: &str) -> Vec<u64> {
    let mut scanner = BodyScanner::new(Arc::from([])).hashing();
    scanner.feed(body.as_bytes()).expect("JSON");
    scanner.finish().expect("a body").prefix_hashes
}

#[test]
fn counted_prompt_text_is_hashed() {
    let (long, data) = ("x".repeat(300), "A".repeat(9_000));
    let chat =
        |content: &str| format!(r#"{{"model":"m","user":"{long}","messages":[{{"content":{content}}}]}}"#);
    assert!(hashes(&chat("\"short\"")).is_empty());
    assert_eq!(hashes(&chat(&format!("\"{long}\""))).len(), 1);
    // An attachment counts up to its limit of 4,096 bytes, which is nine offsets.
    let image =
        |data: &str| hashes(&chat(&format!(r#"[{{"type":"image_url","image_url":{{"url":"{data}"}}}}]"#)));
    assert_eq!(image(&data).len(), 9);
    assert_eq!(image(&format!("{data}BBB")), image(&data));
    assert_ne!(image(&format!("B{data}")), image(&data));
    // Each attachment has a separate limit.
    let both = format!(r#"[{{"url":"{data}"}},{{"url":"{data}"}}]"#);
    assert_eq!(hashes(&chat(&both)).len(), 11);
    // A token id is hashed as a number of four bytes.
    let ids = |last: u32| {
        let ids: Vec<_> = (0..99).chain([last]).map(|id| id.to_string()).collect();
        hashes(&format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(",")))
    };
    assert_eq!(ids(99).len(), 2);
    assert_eq!(ids(99), ids(7), "the last one is past the second offset, 362 bytes");
    let unasked = scan(chat(&format!("\"{long}\"")).as_bytes()).expect("a body");
    assert!(unasked.prefix_hashes.is_empty());
}
