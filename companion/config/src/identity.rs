//! `identity`: the sources of a request's identity, and the trusted clients.

use std::collections::BTreeMap;

use penstock_engine::input::Band;
use penstock_engine::policy::MaxPriority;
use penstock_wire::limits::{JUMP_S_MAX, NAME_BYTES_MAX, STRICT_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Violation;
use crate::value::{self, List, OrderedMap, Scalar, Shortened};
use crate::{ApiKeys, Pool, Trust};

/// The sources of a request's identity. In each list, the first source that is present in the request counts.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// The tenant, which is the identity that shares are given to.
    pub fairness_id: List<Source>,
    /// The user.
    pub user: List<Source>,
    /// The priority: `critical` or `high`, `default` or `normal`, `sheddable` or `low`, or the name of an objective.
    pub priority: List<Source>,
    /// The family of policy classes.
    pub class: List<Source>,
    /// The strict tier, 0 to 15. In a flow, requests of a higher tier are granted first.
    pub strict: List<Source>,
    /// The head start in seconds, 0 to 3600.
    pub jump: List<Source>,
    /// Priorities by the name of an objective.
    pub objectives: BTreeMap<String, Band>,
    /// The highest priority of a tenant. A higher claim is lowered to it, and counted in a metric.
    pub max_priority: MaxPriority,
    /// The trusted clients: every client (`all`), no client (`none`), or the clients in a list of networks. For any other
    /// client, a priority can only lower a request, the class, strict tier, head start and endpoint constraints are
    /// removed, and the fairness id is replaced by one of 64 flows of the client's address. Required when `listen.gateway` is
    /// not a loopback address.
    pub trust: Option<Trust>,
    /// API keys of tenants. The tenant of a request with a key is that of the key: before every source of `fairness_id`, and even if
    /// the client isn't trusted. Null: requests need no key. A path alone is the path of `file`.
    #[serde(deserialize_with = "value::shortened")]
    #[schemars(with = "Option<Shortened<ApiKeys>>")]
    pub api_keys: Option<ApiKeys>,
}

impl Identity {
    /// The bands of a pool's objectives by name. Those of the document come before those that were discovered.
    #[must_use]
    pub fn objectives_of<'a>(&'a self, pool: &'a Pool) -> BTreeMap<&'a str, Band> {
        let all = pool.objectives.iter().chain(&self.objectives);
        all.map(|(name, band)| (name.as_str(), *band)).collect()
    }
}

impl Default for Identity {
    fn default() -> Self {
        let header = |name: &str| Source::Header(name.into());
        let body = |key: &str| Source::Body(key.into());
        Self {
            fairness_id: List(vec![
                header("x-gateway-inference-fairness-id"),
                header("x-llm-d-inference-fairness-id"),
                header("x-penstock-tenant"),
                body("user"),
                body("safety_identifier"),
            ]),
            user: List(vec![header("x-penstock-user"), body("user"), body("safety_identifier")]),
            priority: List(vec![
                header("x-penstock-priority"),
                header("x-nexus-priority"),
                header("x-gateway-inference-objective"),
                header("x-llm-d-inference-objective"),
            ]),
            class: List(vec![
                header("x-penstock-class"),
                header("x-dynamo-meta-policy-class"),
                header("x-dynamo-policy-class"),
            ]),
            strict: List::default(),
            jump: List::default(),
            objectives: BTreeMap::new(),
            max_priority: MaxPriority::default(),
            trust: None,
            api_keys: None,
        }
    }
}

/// A place in a request to read a value from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The name of a request header.
    Header(#[schemars(length(min = 1, max = 256))] String),
    /// The name of a string at the top level of the body, like `user`, or one level below, like `metadata.user_id`.
    Body(#[schemars(length(min = 1, max = 256))] String),
    /// Dynamic metadata of another Envoy filter: `NAMESPACE/KEY/...`, like `envoy.filters.http.jwt_authn/payload/sub`.
    Metadata(#[schemars(length(min = 1, max = 256))] String),
    /// A value by the model's name: globs and values. The first match counts.
    Model(
        #[serde(with = "model_table")]
        #[schemars(with = "OrderedMap<Scalar>")]
        Vec<(String, String)>,
    ),
}

/// Globs and values in the order in which they are written; a value may be a number.
mod model_table {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::value::{OrderedMap, Scalar};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, String)>, D::Error> {
        let table = OrderedMap::<Scalar>::deserialize(deserializer)?;
        Ok(table.0.into_iter().map(|(glob, Scalar(value))| (glob, value)).collect())
    }

    pub(super) fn serialize<S: Serializer>(
        table: &[(String, String)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(table.iter().map(|(glob, value)| (glob, value)))
    }
}

impl Identity {
    /// Checks the sources and the headers of API keys, writes the names of headers in lower case, and sets `trust`.
    pub(crate) fn checked(mut self) -> Result<Self, Violation> {
        for (key, sources) in
            [("fairness_id", &mut self.fairness_id), ("user", &mut self.user), ("class", &mut self.class)]
        {
            check_sources(key, sources, name)?;
        }
        check_sources("priority", &mut self.priority, |value| match value {
            "critical" | "default" | "sheddable" => Ok(()),
            _ => Err("critical, default or sheddable".into()),
        })?;
        check_sources("strict", &mut self.strict, |value| up_to(value, STRICT_MAX))?;
        check_sources("jump", &mut self.jump, |value| up_to(value, JUMP_S_MAX))?;
        if let Some(keys) = &mut self.api_keys {
            check_key_headers(&mut keys.headers)?;
        }
        self.trust.get_or_insert(Trust::All);
        Ok(self)
    }
}

fn check_key_headers(headers: &mut [String]) -> Result<(), Violation> {
    let list = "identity.api_keys.headers";
    if headers.is_empty() {
        return Err(Violation::new(list, "at least one header is required, like authorization"));
    }
    for index in 0..headers.len() {
        let key = format!("{list}[{index}]");
        name(&headers[index]).map_err(|allowed| Violation::new(&*key, format!("must be {allowed}")))?;
        if headers[index].starts_with(':') {
            let message = "a pseudo-header holds no key; write the name of a header, like authorization";
            return Err(Violation::new(key, message));
        }
        headers[index] = header(&headers[index], &key)?;
        if headers[..index].contains(&headers[index]) {
            return Err(Violation::new(key, format!("`{}` is listed twice", headers[index])));
        }
    }
    Ok(())
}

/// Checks the sources at `identity.KEY`. `check` returns a description of the allowed values if a value of a table isn't one.
fn check_sources(
    key: &str,
    sources: &mut List<Source>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), Violation> {
    for (index, source) in sources.0.iter_mut().enumerate() {
        let key = format!("identity.{key}[{index}]");
        if let Source::Header(text) | Source::Body(text) | Source::Metadata(text) = &*source {
            name(text).map_err(|allowed| Violation::new(&*key, format!("must be {allowed}")))?;
        }
        match source {
            Source::Header(name) => *name = header(name, &format!("{key}.header"))?,
            Source::Body(_) => {}
            Source::Metadata(path) => check_metadata(path, &key)?,
            Source::Model(rules) => {
                for (glob, value) in rules {
                    check(value).map_err(|allowed| {
                        Violation::new(
                            format!("{key}.model.{glob}"),
                            format!("must be {allowed}, not `{value}`"),
                        )
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// A header's name in lower case. Pseudo-headers such as `:authority` are allowed.
fn header(name: &str, key: &str) -> Result<String, Violation> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let letters = name.strip_prefix(':').unwrap_or(name);
    if !letters.is_empty() && letters.bytes().all(token) {
        return Ok(name.to_ascii_lowercase());
    }
    Err(Violation::new(
        key,
        format!("`{name}` is not the name of a header; write one like x-penstock-tenant"),
    ))
}

/// Checks that a path has a namespace and at least one key. Keys may contain slashes, because the names of claims may be URLs.
fn check_metadata(path: &str, key: &str) -> Result<(), Violation> {
    if path.split_once('/').is_some_and(|(namespace, keys)| !namespace.is_empty() && !keys.is_empty()) {
        return Ok(());
    }
    Err(Violation::new(
        format!("{key}.metadata"),
        format!("must be NAMESPACE/KEY/..., like envoy.filters.http.jwt_authn/payload/sub, not `{path}`"),
    ))
}

fn name(value: &str) -> Result<(), String> {
    if (1..=NAME_BYTES_MAX).contains(&value.len()) {
        Ok(())
    } else {
        Err(format!("a name of 1 to {NAME_BYTES_MAX} bytes"))
    }
}

fn up_to(value: &str, max: u32) -> Result<(), String> {
    match value.parse::<u32>() {
        Ok(number) if number <= max => Ok(()),
        Ok(_) | Err(_) => Err(format!("a whole number from 0 to {max}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Identity, Source, Trust};

    fn parse(identity: &str) -> Result<Identity, String> {
        let text =
            format!("identity: {identity}\npools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']}}}}]");
        Config::parse(&text, "f.yaml").map(|config| config.identity).map_err(|error| error.to_string())
    }

    #[test]
    fn classes_have_default_headers_and_tiers_have_none() {
        let header = |name: &str| Source::Header(name.into());
        let identity = parse("{}").expect("valid");
        let classes = ["x-penstock-class", "x-dynamo-meta-policy-class", "x-dynamo-policy-class"].map(header);
        assert_eq!(*identity.class, classes);
        assert!(identity.strict.is_empty() && identity.jump.is_empty());
        let identity = parse("{strict: [{header: X-Tier}], jump: [{model: {'z*': 30, '*': 5}}], class: []}");
        let identity = identity.expect("valid");
        assert_eq!(*identity.strict, [header("x-tier")]);
        let rules = [("z*", "30"), ("*", "5")].map(|(glob, value)| (glob.into(), value.into()));
        assert_eq!(*identity.jump, [Source::Model(rules.into())]);
        assert!(identity.class.is_empty());
    }

    #[test]
    fn api_keys_are_a_path_or_a_mapping() {
        assert_eq!(parse("{}").expect("valid").api_keys, None);
        let short = parse("{api_keys: /etc/keys.yaml}").expect("valid").api_keys;
        let long = "{api_keys: {file: /etc/keys.yaml, headers: [authorization, x-api-key, api-key], required: true, forward: false}}";
        assert_eq!(short, parse(long).expect("valid").api_keys);
        let keys = parse("{api_keys: {file: k, headers: [X-Key], required: false, forward: true}}");
        let keys = keys.expect("valid").api_keys.expect("present");
        assert_eq!((&*keys.headers, keys.required, keys.forward), (&["x-key".to_owned()][..], false, true));
    }

    #[test]
    fn trust_is_all_none_or_networks() {
        let trust = |value: &str| {
            parse(&format!("{{trust: {value}}}")).map(|identity| identity.trust.expect("given"))
        };
        assert_eq!(parse("{}").expect("valid").trust, Some(Trust::All));
        assert_eq!(trust("all"), Ok(Trust::All));
        assert_eq!(trust("none"), Ok(Trust::Networks(Vec::new())));
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
        assert_eq!(trust("[10.1.2.3/8, 'fd00::/8']"), Ok(Trust::Networks(networks.into())));
    }
}
