//! `identity`: the sources of a request's identity.

use penstock_wire::limits::{JUMP_S_MAX, NAME_BYTES_MAX, STRICT_MAX};

use crate::error::Violation;
use crate::value::{Scalar, Trusted};
use crate::{ApiKeyTable, ApiKeys, Identity, Source, Trust, raw};

/// Checks `identity`.
pub(super) fn convert(raw: raw::Identity) -> Result<Identity, Violation> {
    Ok(Identity {
        fairness_id: sources("identity.fairness_id", raw.fairness_id.0, name)?,
        user: sources("identity.user", raw.user.0, name)?,
        priority: sources("identity.priority", raw.priority.0, |value| match value {
            "critical" | "default" | "sheddable" => Ok(()),
            _ => Err("critical, default or sheddable".into()),
        })?,
        class: sources("identity.class", raw.class.0, name)?,
        strict: sources("identity.strict", raw.strict.0, |value| up_to(value, STRICT_MAX))?,
        jump: sources("identity.jump", raw.jump.0, |value| up_to(value, JUMP_S_MAX))?,
        objectives: raw.objectives.into_iter().collect(),
        max_priority: raw.max_priority,
        trust: match raw.trust {
            None | Some(Trusted::All) => Trust::All,
            Some(Trusted::Networks(networks)) => {
                Trust::Networks(networks.into_iter().map(|network| network.0).collect())
            }
        },
        api_keys: raw.api_keys.map(api_keys).transpose()?,
    })
}

fn api_keys(raw::ApiKeysEntry(raw): raw::ApiKeysEntry) -> Result<ApiKeys, Violation> {
    let list = "identity.api_keys.headers";
    if raw.headers.0.is_empty() {
        return Err(Violation::new(list, "at least one header is required, like authorization"));
    }
    let mut headers: Vec<String> = Vec::with_capacity(raw.headers.0.len());
    for (index, given) in raw.headers.0.into_iter().enumerate() {
        let key = format!("{list}[{index}]");
        name(&given).map_err(|allowed| Violation::new(&*key, format!("must be {allowed}")))?;
        if given.starts_with(':') {
            let message = "a pseudo-header holds no key; write the name of a header, like authorization";
            return Err(Violation::new(key, message));
        }
        let name = header(given, &key)?;
        if headers.contains(&name) {
            return Err(Violation::new(key, format!("`{name}` is listed twice")));
        }
        headers.push(name);
    }
    Ok(ApiKeys {
        file: raw.file,
        headers,
        required: raw.required,
        forward: raw.forward,
        table: ApiKeyTable::default(),
    })
}

/// Checks the sources at `key`. `check` returns a description of the allowed values if a value of a table isn't one.
fn sources(
    key: &str,
    raw: Vec<raw::Source>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<Vec<Source>, Violation> {
    raw.into_iter()
        .enumerate()
        .map(|(index, source)| {
            let key = format!("{key}[{index}]");
            let checked = |text: String| match name(&text) {
                Ok(()) => Ok(text),
                Err(allowed) => Err(Violation::new(&*key, format!("must be {allowed}"))),
            };
            Ok(match source {
                raw::Source::Header(name) => {
                    Source::Header(header(checked(name)?, &format!("{key}.header"))?)
                }
                raw::Source::Body(name) => Source::Body(checked(name)?),
                raw::Source::Metadata(path) => Source::Metadata(metadata(checked(path)?, &key)?),
                raw::Source::Model(rules) => {
                    let rules = rules.0.into_iter().map(|(glob, Scalar(value))| {
                        check(&value).map_err(|allowed| {
                            Violation::new(
                                format!("{key}.model.{glob}"),
                                format!("must be {allowed}, not `{value}`"),
                            )
                        })?;
                        Ok((glob, value))
                    });
                    Source::Model(rules.collect::<Result<_, _>>()?)
                }
            })
        })
        .collect()
}

/// A header's name in lower case. Pseudo-headers such as `:authority` are allowed.
fn header(name: String, key: &str) -> Result<String, Violation> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let letters = name.strip_prefix(':').unwrap_or(&name);
    if !letters.is_empty() && letters.bytes().all(token) {
        return Ok(name.to_ascii_lowercase());
    }
    Err(Violation::new(
        key,
        format!("`{name}` is not the name of a header; write one like x-penstock-tenant"),
    ))
}

/// A namespace and at least one key. Keys may contain slashes, because the names of claims may be URLs.
fn metadata(path: String, key: &str) -> Result<String, Violation> {
    if path.split_once('/').is_some_and(|(namespace, keys)| !namespace.is_empty() && !keys.is_empty()) {
        return Ok(path);
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
        let classes = [header("x-penstock-class"), header("x-dynamo-meta-policy-class")];
        assert_eq!(identity.class, classes);
        assert!(identity.strict.is_empty() && identity.jump.is_empty());
        let identity = parse("{strict: [{header: X-Tier}], jump: [{model: {'z*': 30, '*': 5}}], class: []}");
        let identity = identity.expect("valid");
        assert_eq!(identity.strict, [header("x-tier")]);
        let rules = [("z*", "30"), ("*", "5")].map(|(glob, value)| (glob.into(), value.into()));
        assert_eq!(identity.jump, [Source::Model(rules.into())]);
        assert!(identity.class.is_empty());
    }

    #[test]
    fn errors_of_model_tables_name_the_allowed_values() {
        for (identity, key, word) in [
            ("{strict: [{model: {'*': 16}}]}", "identity.strict[0].model.*", "0 to 15"),
            ("{jump: [{model: {'*': 3601}}]}", "identity.jump[0].model.*", "0 to 3600"),
            ("{priority: [{model: {'*': urgent}}]}", "identity.priority[0].model.*", "sheddable"),
            ("{class: [{header: ''}]}", "identity.class[0]", "1 to 256"),
        ] {
            let message = parse(identity).expect_err(identity);
            assert!(message.starts_with(&format!("f.yaml:1: {key}: ")), "{message}");
            assert!(message.contains(word), "{message}");
        }
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
        for (wrong, key, word) in [
            ("{api_keys: {headers: [a]}}", "identity.api_keys.file", "missing"),
            ("{api_keys: 7}", "identity.api_keys", "the path of a file"),
            ("{api_keys: {file: k, headers: []}}", "identity.api_keys.headers", "at least one"),
            ("{api_keys: {file: k, headers: [':path']}}", "identity.api_keys.headers[0]", "pseudo-header"),
            ("{api_keys: {file: k, headers: [a, 'b c']}}", "identity.api_keys.headers[1]", "`b c`"),
            ("{api_keys: {file: k, headers: [a, A]}}", "identity.api_keys.headers[1]", "twice"),
        ] {
            let message = parse(wrong).expect_err(wrong);
            assert!(message.starts_with(&format!("f.yaml:1: {key}: ")), "{message}");
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn trust_is_all_none_or_networks() {
        let trust = |value: &str| parse(&format!("{{trust: {value}}}")).map(|identity| identity.trust);
        assert_eq!(parse("{}").expect("valid").trust, Trust::All);
        assert_eq!(trust("all"), Ok(Trust::All));
        assert_eq!(trust("none"), Ok(Trust::Networks(Vec::new())));
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
        assert_eq!(trust("[10.1.2.3/8, 'fd00::/8']"), Ok(Trust::Networks(networks.into())));
        for wrong in ["[10.0.0.0/33]", "[10.0.0.0]", "['']"] {
            let message = trust(wrong).expect_err(wrong);
            assert!(message.starts_with("f.yaml:1: identity.trust[0]: "), "{message}");
            assert!(message.contains("10.0.0.0/8"), "{message}");
        }
        let message = trust("some").expect_err("no such word");
        assert!(message.starts_with("f.yaml:1: identity.trust: "), "{message}");
        assert!(message.contains("all, none, or a list of networks"), "{message}");
    }
}
