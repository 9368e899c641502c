//! The models that clients may name: what the servers of each pool list and requests for it reach, and the names that the configuration gives them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_engine::policy::Rewrite;
use penstock_wire::limits::{MODEL_LIST_BYTES_MAX, MODEL_LIST_MAX, NAME_BYTES_MAX};
use penstock_wire::{ListedModel, ModelList};
use serde_json::{Map, Value, json};
use wildmatch::WildMatch;

/// Bytes of a model's object. Of a larger one, the fields that every list has are shown.
const OBJECT_BYTES_MAX: usize = 4_096;

/// The models that one server lists: objects with an `id`, in its order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ListedModels(Vec<Map<String, Value>>);

impl ListedModels {
    /// Reads a list: `data` of OpenAI's form, else `models` with names or objects. `None`: it is none.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let mut document: Map<String, Value> = serde_json::from_slice(body).ok()?;
        let list = document.remove("data").or_else(|| document.remove("models"))?;
        let Value::Array(entries) = list else { return None };
        let models = entries.into_iter().filter_map(|entry| match entry {
            Value::String(id) => model(id, Map::new()),
            Value::Object(fields) => {
                let id = ["id", "name", "model"].iter().find_map(|key| fields.get(*key)?.as_str())?;
                model(id.to_owned(), fields)
            }
            _ => None,
        });
        Some(Self(models.take(MODEL_LIST_MAX).collect()))
    }

    /// The times of models that were listed before are those of the first list: vLLM shows the time of the request.
    fn with_times_of(mut self, before: &[Self]) -> Self {
        let known: BTreeMap<String, &Map<String, Value>> = (before.iter().flat_map(|list| &list.0))
            .filter_map(|fields| Some((fields.get("id")?.as_str()?.to_owned(), fields)))
            .collect();
        for fields in &mut self.0 {
            let id = fields.get("id").and_then(Value::as_str).unwrap_or_default();
            let Some(known) = known.get(id) else { continue };
            for key in ["created", "created_at"] {
                if let Some(value) = known.get(key) {
                    fields.insert(key.to_owned(), value.clone());
                }
            }
        }
        self
    }
}

/// A model with the fields that a list of models has in the APIs of OpenAI and Anthropic. `None`: no request can name it.
fn model(id: String, mut fields: Map<String, Value>) -> Option<Map<String, Value>> {
    if id.is_empty() || id.len() > NAME_BYTES_MAX {
        return None;
    }
    let created = fields.get("created").and_then(Value::as_u64).unwrap_or(0);
    fields.insert("id".into(), id.clone().into());
    // vLLM makes it anew for each request.
    fields.remove("permission");
    let mut default = |key: &str, value: Value| {
        fields.entry(key).or_insert(value);
    };
    default("object", "model".into());
    default("created", created.into());
    default("owned_by", "unknown".into());
    default("type", "model".into());
    default("display_name", id.into());
    default("created_at", rfc3339(created).into());
    if serde_json::to_string(&fields).map_or(0, |text| text.len()) > OBJECT_BYTES_MAX {
        let essential = ["id", "object", "created", "owned_by", "type", "display_name", "created_at"];
        fields.retain(|key, value| {
            essential.contains(&key.as_str()) && !value.is_object() && !value.is_array()
        });
    }
    Some(fields)
}

fn rfc3339(seconds: u64) -> String {
    // The last year that the format has.
    let time = Duration::from_secs(seconds.min(253_402_300_799));
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + time).to_string()
}

/// A pool, as far as its models matter.
#[derive(Debug)]
pub(super) struct Pool {
    name: Arc<str>,
    models: Vec<String>,
    rewrite: Vec<Rewrite>,
    addresses: Vec<String>,
    is_asked: bool,
}

impl Pool {
    pub(super) fn of(pool: &penstock_config::Pool) -> Self {
        Self {
            name: pool.name.as_str().into(),
            models: pool.models.clone(),
            rewrite: pool.rewrite.clone(),
            addresses: pool.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect(),
            is_asked: pool.health.is_some(),
        }
    }

    fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|glob| WildMatch::new(glob).matches(model))
    }
}

/// What the servers of a pool have answered.
#[derive(Debug, Default)]
struct Answers {
    /// By address, of the present endpoints that were asked.
    by_address: BTreeMap<String, Option<ListedModels>>,
    /// The lists while there was at least one.
    last: Vec<ListedModels>,
}

/// The pools, and what their servers have answered.
#[derive(Debug, Default)]
pub(super) struct Union {
    pools: Vec<Pool>,
    answers: BTreeMap<Arc<str>, Answers>,
    /// Every endpoint was asked once, or enough time has passed.
    pub(super) is_complete: bool,
    /// The list may be another one.
    pub(super) has_changed: bool,
}

impl Union {
    pub(super) fn set_pools(&mut self, pools: Vec<Pool>) {
        self.pools = pools;
        self.has_changed = true;
        self.answers.retain(|name, _| self.pools.iter().any(|pool| pool.name == *name && pool.is_asked));
        for pool in &self.pools {
            if let Some(answers) = self.answers.get_mut(&pool.name) {
                answers.by_address.retain(|address, _| pool.addresses.contains(address));
            }
        }
    }

    pub(super) fn answer(&mut self, pool: &Arc<str>, address: String, models: Option<ListedModels>) {
        let is_endpoint = |known: &Pool| known.name == *pool && known.addresses.contains(&address);
        if !self.pools.iter().any(is_endpoint) {
            return;
        }
        let answers = self.answers.entry(pool.clone()).or_default();
        let models = models.map(|models| models.with_times_of(&answers.last));
        let is_new = !answers.by_address.contains_key(&address);
        let known = answers.by_address.entry(address).or_default();
        if !is_new && (models.is_none() || *known == models) {
            return;
        }
        self.has_changed = true;
        // A server that answers no longer has the same models when it comes back, or others, which it lists then.
        if models.is_some() || known.is_none() {
            *known = models;
        }
        let lists: Vec<_> = answers.by_address.values().flatten().cloned().collect();
        if !lists.is_empty() {
            answers.last = lists;
        }
    }

    /// The list; `None` until every endpoint was asked, and while no server has listed anything.
    pub(super) fn list(&mut self) -> Option<ModelList> {
        self.is_complete |= self.pools.iter().filter(|pool| pool.is_asked).all(|pool| {
            let answers = self.answers.get(&pool.name).map_or(0, |answers| answers.by_address.len());
            answers == pool.addresses.len() && answers > 0
        });
        let is_known = self.answers.values().any(|answers| !answers.last.is_empty());
        if !self.is_complete || !is_known {
            return None;
        }
        let mut list = List::default();
        for (index, pool) in self.pools.iter().enumerate() {
            let listed = self.answers.get(&pool.name).map_or(&[][..], |answers| &answers.last);
            let listed = || listed.iter().flat_map(|list| &list.0);
            let is_reached = |id: &str| {
                pool.serves(id) && !self.pools.iter().take(index).any(|earlier| earlier.serves(id))
            };
            for fields in listed() {
                let id = fields.get("id").and_then(Value::as_str).unwrap_or_default();
                if is_reached(id) {
                    list.add(id, fields);
                }
            }
            // Names that only the configuration has: for a server that answers to any name, or for a target.
            let rules: Vec<_> = pool.rewrite.iter().map(|rule| (WildMatch::new(&rule.model), rule)).collect();
            let rewritten = pool.rewrite.iter().map(|rule| rule.model.as_str());
            for id in pool.models.iter().map(String::as_str).chain(rewritten) {
                if id.contains(['*', '?']) || !is_reached(id) {
                    continue;
                }
                let rule = rules.iter().find(|(glob, _)| glob.matches(id));
                let target = rule.and_then(|(_, rule)| rule.targets.first()).map(|(name, _)| name.as_str());
                let original = target
                    .and_then(|target| listed().find(|fields| fields.get("id") == Some(&target.into())));
                let mut fields = original.cloned().unwrap_or_default();
                fields.remove("display_name");
                if let Some(target) = target {
                    fields.insert("root".into(), target.into());
                }
                if let Some(fields) = model(id.to_owned(), fields) {
                    list.add(id, &fields);
                }
            }
        }
        if list.left_out > 0 {
            tracing::warn!(
                listed = list.models.len(),
                left_out = list.left_out,
                "GET /v1/models leaves out models: it has room for {MODEL_LIST_MAX}, and {MODEL_LIST_BYTES_MAX} bytes; requests for them go on as before"
            );
        }
        Some(ModelList { models: list.models })
    }
}

#[derive(Default)]
struct List {
    models: Vec<ListedModel>,
    ids: HashSet<String>,
    bytes: usize,
    left_out: usize,
}

impl List {
    /// The first model of a name counts.
    fn add(&mut self, id: &str, fields: &Map<String, Value>) {
        if !self.ids.insert(id.to_owned()) {
            return;
        }
        let object = json!(fields).to_string();
        let bytes = self.bytes + object.len() + 1;
        // The bytes around the list, too.
        if bytes + 4 * NAME_BYTES_MAX >= MODEL_LIST_BYTES_MAX || self.models.len() >= MODEL_LIST_MAX {
            self.left_out += 1;
            return;
        }
        self.bytes = bytes;
        self.models.push(ListedModel { id: id.to_owned(), object });
    }
}

#[cfg(test)]
mod tests {
    use penstock_config::Config;

    use super::*;

    const TWO: &str = "pools:\n\
        - {name: a, models: ['org/*', spare], endpoints: {static: ['127.0.0.1:1', '127.0.0.1:2']}, \
           rewrite: [{model: org/alias, targets: [{name: org/big}]}, {model: 'org/x*', targets: [{name: org/big}]}]}\n\
        - {name: b, endpoints: {static: ['127.0.0.1:3']}}\n";

    fn union(text: &str) -> Union {
        let config = Config::parse(text, "f.yaml").expect("valid");
        let mut union = Union::default();
        union.set_pools(config.pools.iter().map(Pool::of).collect());
        union
    }

    fn models(ids: &[&str]) -> Option<ListedModels> {
        let data: Vec<_> = ids.iter().map(|id| json!({"id": id, "created": 1})).collect();
        ListedModels::parse(json!({"object": "list", "data": data}).to_string().as_bytes())
    }

    fn ids(union: &mut Union) -> Option<Vec<String>> {
        Some(union.list()?.models.into_iter().map(|model| model.id).collect())
    }

    #[test]
    fn union_has_what_requests_reach_and_the_names_of_the_configuration() {
        let mut union = union(TWO);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        union.answer(&a, "127.0.0.1:1".into(), models(&["org/big", "other"]));
        assert_eq!(ids(&mut union), None, "not all were asked");
        union.answer(&b, "127.0.0.1:3".into(), models(&["small", "org/small", "small"]));
        union.answer(&a, "127.0.0.1:2".into(), models(&["org/big", "org/adapter"]));
        // `other` goes to b, whose servers don't have it, and `org/small` to a.
        let all = ["org/big", "org/adapter", "spare", "org/alias", "small"];
        assert_eq!(ids(&mut union).expect("a list"), all);
        let list = union.list().expect("a list");
        let alias: Value = serde_json::from_str(&list.models[3].object).expect("JSON");
        assert_eq!(
            alias,
            json!({
                "id": "org/alias", "object": "model", "created": 1, "owned_by": "unknown", "root": "org/big",
                "type": "model", "display_name": "org/alias", "created_at": "1970-01-01T00:00:01Z",
            })
        );
    }

    #[test]
    fn what_a_pool_listed_last_stays_while_it_is_away() {
        let mut union = union(TWO);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        union.answer(&a, "127.0.0.1:1".into(), None);
        union.answer(&a, "127.0.0.1:2".into(), None);
        union.answer(&b, "127.0.0.1:3".into(), None);
        assert_eq!(ids(&mut union), None, "no server has a list: its own answer passes");
        union.answer(&b, "127.0.0.1:3".into(), models(&["small"]));
        let all = ["spare", "org/alias", "small"];
        assert_eq!(ids(&mut union).expect("a list"), all);
        union.answer(&b, "127.0.0.1:3".into(), None);
        assert_eq!(ids(&mut union).expect("a list"), all, "away");
        // A server that shows the time of the request has the same list.
        union.has_changed = false;
        let later = json!({"data": [{"id": "small", "created": 9, "permission": [{"id": "modelperm-x"}]}]});
        union.answer(&b, "127.0.0.1:3".into(), ListedModels::parse(later.to_string().as_bytes()));
        assert!(!union.has_changed);
        // Its endpoint leaves, as when it is scaled to zero, and another one comes.
        union.set_pools(
            Config::parse(&TWO.replace(":3", ":4"), "f.yaml")
                .expect("valid")
                .pools
                .iter()
                .map(Pool::of)
                .collect(),
        );
        assert_eq!(ids(&mut union).expect("a list"), all);
        union.answer(&b, "127.0.0.1:3".into(), models(&["late"]));
        assert_eq!(ids(&mut union).expect("a list"), all, "no endpoint any more");
        union.answer(&b, "127.0.0.1:4".into(), models(&["new"]));
        assert_eq!(ids(&mut union).expect("a list"), ["spare", "org/alias", "new"]);
    }

    #[test]
    fn a_list_has_limits() {
        let mut list = List::default();
        for number in 0..MODEL_LIST_MAX + 5 {
            list.add(&format!("m{}", number / 2 * 2), &Map::new());
            list.add(&format!("m{number}"), &Map::new());
        }
        assert_eq!((list.models.len(), list.left_out), (MODEL_LIST_MAX, 5));
        let mut list = List::default();
        let long: Map<String, Value> =
            Map::from_iter([("more".to_owned(), "x".repeat(MODEL_LIST_BYTES_MAX / 3).into())]);
        for number in 0..4 {
            list.add(&format!("m{number}"), &long);
        }
        assert_eq!((list.models.len(), list.left_out), (2, 2));
    }

    #[test]
    fn lists_come_in_several_forms() {
        let ids = |text: &str| {
            let list = ListedModels::parse(text.as_bytes())?;
            Some(
                list.0
                    .iter()
                    .map(|fields| fields["id"].as_str().expect("text").to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(ids(r#"{"models": ["a", "b"]}"#).expect("KServe"), ["a", "b"]);
        assert_eq!(ids(r#"{"models": [{"name": "a"}, {"model": "b"}, 1, {}]}"#).expect("Ollama"), ["a", "b"]);
        assert_eq!(
            ids(r#"{"data": [{"id": ""}, {"id": "a", "n": [1]}], "models": ["c"]}"#).expect("both"),
            ["a"]
        );
        assert_eq!(
            ids(&format!(r#"{{"data": [{{"id": "{}"}}]}}"#, "x".repeat(NAME_BYTES_MAX + 1))).expect("long"),
            [""; 0]
        );
        for wrong in ["", "[]", "{}", "null", r#"{"data": {}}"#, r#"{"data": [}"#] {
            assert_eq!(ids(wrong), None, "{wrong}");
        }
        let large =
            json!({"data": [{"id": "a", "created": 5, "more": "x".repeat(OBJECT_BYTES_MAX)}]}).to_string();
        let large = ListedModels::parse(large.as_bytes()).expect("a list");
        assert_eq!((large.0[0].len(), &large.0[0]["created"]), (7, &json!(5)));
    }
}
