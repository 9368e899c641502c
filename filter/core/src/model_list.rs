//! The models that clients may name, as a companion sent them last, and the answers to requests for them.
//!
//! The answers have the fields of OpenAI's and of Anthropic's API, because one path serves the clients of both.

use penstock_wire::limits::{MODEL_LIST_BYTES_MAX, MODEL_LIST_MAX};
use penstock_wire::{self as wire, Code};

use crate::local_reply::{Failure, LocalReply};
use crate::paths::{decoded_with_case, without_query};

/// The models.
#[derive(Debug)]
pub(crate) struct ModelList {
    /// The whole list, as JSON.
    list: Vec<u8>,
    models: Vec<wire::ListedModel>,
}

impl ModelList {
    /// Models beyond the limits are left out.
    pub(crate) fn new(message: wire::ModelList) -> Self {
        let mut models = message.models;
        models.truncate(MODEL_LIST_MAX);
        let mut list = br#"{"object":"list","data":["#.to_vec();
        let mut kept = 0_usize;
        for model in &models {
            if list.len().saturating_add(model.object.len()) > MODEL_LIST_BYTES_MAX {
                break;
            }
            if kept > 0 {
                list.push(b',');
            }
            list.extend_from_slice(model.object.as_bytes());
            kept = kept.saturating_add(1);
        }
        models.truncate(kept);
        let id = |model: Option<&wire::ListedModel>| {
            serde_json::to_string(&model.map(|model| &*model.id)).unwrap_or_default()
        };
        let (first, last) = (id(models.first()), id(models.last()));
        let end = format!(r#"],"has_more":false,"first_id":{first},"last_id":{last}}}"#);
        list.extend_from_slice(end.as_bytes());
        Self { list, models }
    }

    /// The answer to a GET request for the list, or for a model in it; else the name of the model.
    pub(crate) fn answer(&self, path: &[u8]) -> Result<LocalReply, String> {
        let path = decoded_with_case(without_query(path));
        let path = String::from_utf8_lossy(&path);
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let (_, _) = (segments.next(), segments.next());
        // The names of many models have slashes.
        let id = segments.collect::<Vec<_>>().join("/");
        if id.is_empty() {
            return Ok(json(self.list.clone()));
        }
        let model = self.models.iter().find(|model| model.id == id);
        model.map(|model| json(model.object.clone().into_bytes())).ok_or(id)
    }
}

/// The error for a model that no pool serves.
pub(crate) fn not_found(model: &str) -> Failure {
    let message = format!("The gateway has no model `{model}`: GET /v1/models lists those that it has.");
    Failure::new(404, Code::ModelNotFound, message).about("model").without_retry()
}

fn json(body: Vec<u8>) -> LocalReply {
    LocalReply { status: 200, headers: vec![("content-type", "application/json".to_owned())], body }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn models(ids: &[&str]) -> ModelList {
        let model = |id: &&str| wire::ListedModel { id: (*id).into(), object: format!(r#"{{"id":"{id}"}}"#) };
        ModelList::new(wire::ModelList { models: ids.iter().map(model).collect() })
    }

    fn text(reply: &LocalReply) -> (u32, &str) {
        (reply.status, core::str::from_utf8(&reply.body).expect("JSON"))
    }

    #[test]
    fn a_list_and_each_of_its_models_are_answered() {
        let all = models(&["org/Big", "small"]);
        let list = r#"{"object":"list","data":[{"id":"org/Big"},{"id":"small"}],"has_more":false,"first_id":"org/Big","last_id":"small"}"#;
        for path in ["/v1/models", "/v1/models/", "//v1/models?limit=1", "/v1%2Fmodels"] {
            assert_eq!(text(&all.answer(path.as_bytes()).expect("the list")), (200, list), "{path}");
        }
        for path in ["/v1/models/org/Big", "/v1/models/org%2FBig", "/v1/models/org%252FBig/?beta=true"] {
            let answer = all.answer(path.as_bytes()).expect("listed");
            assert_eq!(text(&answer), (200, r#"{"id":"org/Big"}"#), "{path}");
        }
        for (path, id) in
            [("/v1/models/big", "big"), ("/v1/models/org/big/", "org/big"), ("/v1/models/x%22y", "x\"y")]
        {
            assert_eq!(all.answer(path.as_bytes()), Err(id.to_owned()), "{path}");
        }
    }

    #[test]
    fn a_list_may_be_empty_and_has_limits() {
        let empty = r#"{"object":"list","data":[],"has_more":false,"first_id":null,"last_id":null}"#;
        assert_eq!(text(&models(&[]).answer(b"/v1/models").expect("the list")), (200, empty));
        let long = wire::ListedModel { id: "a".into(), object: "x".repeat(MODEL_LIST_BYTES_MAX / 2) };
        let all = ModelList::new(wire::ModelList { models: vec![long; 5] });
        assert_eq!(all.models.len(), 1);
        assert_eq!(models(&vec!["a"; MODEL_LIST_MAX + 1]).models.len(), MODEL_LIST_MAX);
    }
}
