//! A valid configuration document: every key with its effective value, as it is shown, changed and written at run time.
//!
//! [`Config`] is the typed form that the program uses. A document keeps the keys and values as people write them. A change
//! makes a new document that is checked as a whole, or an error with its place, so a document is never half changed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize as _;
use serde_json::Value;
use siphasher::sip::SipHasher13;

use super::environment::Environment;
use super::error::Error;
use super::listen::Address;
use super::reader::Reader;
use super::tree::Node;
use super::value::{List, Shortened};
use super::{Config, Endpoint, EndpointDefaults, keys, patch, redis_url, upstream, yaml};

/// Reads a list of endpoints in the form of `endpoints.static`, from the text of a file that `endpoints.file` names. An empty
/// text is an empty list. `file` names the text in errors. `needs_batched_tokens`: by [`super::Pool::needs_batched_tokens`].
///
/// # Errors
/// When the text isn't YAML, or has a value that isn't allowed, or lacks one that the pool needs.
pub fn parse_endpoints(
    text: &str,
    file: &str,
    defaults: &EndpointDefaults,
    needs_batched_tokens: bool,
) -> Result<Vec<Endpoint>, Error> {
    let tree = yaml::document(text).map_err(|error| Error::from_yaml(error, file))?;
    let list = List::<Shortened<keys::Endpoint>>::deserialize(Reader(&tree))
        .map_err(|error| Error::from_read(error, &tree, file))?;
    if list.0.is_empty() {
        return Ok(Vec::new());
    }
    keys::endpoint_list(list.0, defaults, "")
        .and_then(|endpoints| {
            if needs_batched_tokens {
                keys::check_batched_tokens(&endpoints, "")?;
            }
            Ok(endpoints)
        })
        .map_err(|violation| Error::from_violation(violation, &tree, file))
}

/// The address of a companion's HTTP server, `listen.http`, by its file and the environment. Without a file only the variables of
/// `listen` count, because the others may belong to pools that a file lists.
///
/// # Errors
/// When the file isn't valid, or a variable of `listen` isn't.
pub fn http_address(file: Option<&Path>, environment: &Environment) -> Result<Address, Error> {
    if let Some(file) = file {
        return Config::read(file, environment).map(|config| config.listen.http);
    }
    let name = "environment";
    let mut tree = yaml::document("").map_err(|error| Error::from_yaml(error, name))?;
    environment.of_key("listen").apply(&mut tree)?;
    Ok(keys_of(&tree, name)?.listen.http)
}

fn keys_of(tree: &Node, file: &str) -> Result<keys::Document, Error> {
    if tree.is_null() {
        return Ok(keys::Document::default());
    }
    keys::Document::deserialize(Reader(tree)).map_err(|error| Error::from_read(error, tree, file))
}

/// A valid document.
#[derive(Clone, Debug)]
pub struct Document {
    config: Config,
    json: Value,
    digest: String,
    /// Whether `identity.trust` was written. The effective document always shows it.
    trust_is_given: bool,
}

impl Document {
    /// Reads a file, and applies the variables of the environment.
    ///
    /// # Errors
    /// When the file can't be read, isn't YAML, or has a value that isn't allowed.
    pub fn read(path: &Path, environment: &Environment) -> Result<Self, Error> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let text = yaml::utf8(bytes).map_err(|error| Error::from_yaml(error, &file))?;
        Self::parse_with(&text, &file, environment)
    }

    /// Checks a text of YAML or JSON. `file` names it in errors.
    ///
    /// # Errors
    /// When the text is neither, or has a value that isn't allowed.
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        Self::parse_with(text, file, &Environment::default())
    }

    /// Checks a text after applying the variables of the environment.
    ///
    /// # Errors
    /// As [`Document::parse`], also where a variable is wrong.
    pub fn parse_with(text: &str, file: &str, environment: &Environment) -> Result<Self, Error> {
        let mut tree = yaml::document(text).map_err(|error| Error::from_yaml(error, file))?;
        if !tree.is_map() && !tree.is_null() {
            return Err(Error::at_place(
                &tree.place,
                file,
                "document".into(),
                "a configuration is a mapping of keys to values, like `pools: [...]`".into(),
            ));
        }
        environment.apply(&mut tree)?;
        Self::from_tree(&tree, file)
    }

    fn from_tree(tree: &Node, file: &str) -> Result<Self, Error> {
        let document = keys_of(tree, file)?;
        let effective = document.clone().with_effective_defaults();
        let trust_is_given = document.identity.trust.is_some();
        let config =
            Config::try_from(document).map_err(|violation| Error::from_violation(violation, tree, file))?;
        let json = serde_json::to_value(effective)
            .map_err(|error| Error::at_place(&tree.place, file, "document".into(), error.to_string()))?;
        let mut masked = json.clone();
        mask(&mut masked);
        Ok(Self { config, digest: digest(&json, masked != json), json, trust_is_given })
    }

    /// The document that `text` describes, in place of this one. Where `text` has `***` for a password, this document's
    /// password stays.
    ///
    /// # Errors
    /// As [`Document::parse`].
    pub fn replaced(&self, text: &str, name: &str) -> Result<Self, Error> {
        if let Ok(mut json) = serde_json::from_str(text)
            && unmask(&mut json, &self.json)
        {
            return Self::from_tree(&Node::from_json(&json), name);
        }
        Self::parse(text, name)
    }

    /// Every key with its effective value, in the notation of the file, with `***` for passwords.
    #[must_use]
    pub fn masked(&self) -> Value {
        let mut json = self.json.clone();
        mask(&mut json);
        json
    }

    /// The effective document without `identity.trust` unless that was written. Otherwise a change of another key would
    /// count as a decision on trust.
    fn as_written(&self) -> Value {
        let mut json = self.json.clone();
        if !self.trust_is_given
            && let Some(identity) = json.get_mut("identity").and_then(Value::as_object_mut)
        {
            identity.shift_remove("trust");
        }
        json
    }

    /// This document changed by a JSON merge patch (RFC 7396), with one exception: `pools` is not replaced as a list. The
    /// patch names the pools that it changes: `{"pools": [{"name": "a", ...}]}` or `{"pools": {"a": {...}}}`.
    /// `{"pools": {"a": null}}` removes a pool, and so does `endpoints: null` as the only key besides the name.
    ///
    /// # Errors
    /// When the result isn't a valid document.
    pub fn patched(&self, patch: &Value) -> Result<Self, Error> {
        let mut json = self.as_written();
        patch::merge(&mut json, patch);
        unmask(&mut json, &self.json);
        Self::from_tree(&Node::from_json(&json), "patch")
    }

    /// The typed form.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The typed form alone.
    #[must_use]
    pub fn into_config(self) -> Config {
        self.config
    }

    /// Every key with its effective value, in the notation of the file, including passwords. Never show or log this; use
    /// [`Document::masked`].
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// The document as YAML, to be written to a file. Includes passwords.
    ///
    /// # Errors
    /// When the document has no YAML form, which doesn't happen to a valid document.
    pub fn yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&self.as_written())
    }

    /// Sixteen hexadecimal digits that change when any value does.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Replaces every secret of a document by `***`.
fn mask(document: &mut Value) {
    redis_url::mask(document);
    upstream::mask(document);
}

/// Replaces each `***` by the secret that `known` has in its place. Returns whether there was one to replace.
fn unmask(document: &mut Value, known: &Value) -> bool {
    let passwords = redis_url::unmask(document, known);
    upstream::unmask(document, known) || passwords
}

/// A hash of the document. Every build gives a document the same digest, so that companions can be compared.
///
/// Digests are public. So the digest of a document with a password depends on a random key of this process; otherwise it
/// would confirm guesses of the password.
fn digest(json: &Value, has_password: bool) -> String {
    static SECRET: OnceLock<(u64, u64)> = OnceLock::new();
    let (first, second) = if has_password {
        *SECRET.get_or_init(|| {
            let random = RandomState::new();
            (random.hash_one(0), random.hash_one(1))
        })
    } else {
        (0, 0)
    };
    let mut hasher = SipHasher13::new_with_keys(first, second);
    hasher.write(json.to_string().as_bytes());
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::digest;

    #[test]
    fn digest_is_the_same_in_every_build_unless_the_document_has_a_password() {
        let document = json!({"limits": {"flows": 5}});
        assert_eq!(digest(&document, false), "053c860cc89fddf2");
        assert_ne!(digest(&document, true), digest(&document, false));
        assert_eq!(digest(&document, true), digest(&document, true));
    }
}
