//! The document itself: every key with its value in force, as it is shown, changed and written at run time.
//!
//! [`Config`] is what the program holds to; a document is how people say it. A change makes another document, whole and
//! checked, or an error that says where it is wrong; there is none that is half changed.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::path::Path;
use std::sync::{Once, OnceLock};

use serde::Deserialize as _;
use serde_json::Value;

use super::environment::{self, Overlay};
use super::node::{Node, Place};
use super::reader::Reader;
use super::value::List;
use super::{Broken, Config, Endpoint, Error, convert, parse, patch, raw, redis_url};

/// The endpoints of a text that has the form of `endpoints.static`, for those that are found in a file; `file` names it in
/// errors. Nothing in it is none.
///
/// # Errors
/// When it isn't YAML, or says something that isn't allowed.
pub fn endpoints(text: &str, file: &str) -> Result<Vec<Endpoint>, Error> {
    let tree = parse::any(text, file)?;
    let wrong = |place: &Place, key: String, message: String| Error::Document {
        file: file.to_owned(),
        line: match place {
            Place::Line(line) => *line,
            Place::Variable(_) => 1,
        },
        key,
        message,
    };
    let list = List::<raw::EndpointEntry>::deserialize(Reader(&tree)).map_err(|why| {
        let place = why.place.clone().unwrap_or_else(|| tree.place.clone());
        wrong(&place, why.key(), why.message)
    })?;
    if list.0.is_empty() {
        return Ok(Vec::new());
    }
    convert::fixed(list.0, "").map_err(|Broken(key, message)| wrong(tree.place_of(&key), key, message))
}

/// A document that is valid.
#[derive(Clone, Debug)]
pub struct Document {
    config: Config,
    json: Value,
    digest: String,
    /// Was it said whose claims count? It isn't, by being shown.
    says_trust: bool,
}

impl Document {
    /// Reads a file, and the environment over it.
    ///
    /// # Errors
    /// When the file can't be read, isn't YAML, or says something that isn't allowed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let before = error.as_bytes().get(..valid).unwrap_or_default();
            Error::Document {
                file: file.clone(),
                line: before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1,
                key: "document".into(),
                message: "a document is text in UTF-8, and this line isn't".into(),
            }
        })?;
        Self::parse_over(&text, &file, std::env::vars_os())
    }

    /// Checks a text of YAML or JSON, which `file` names in errors. The environment says nothing here.
    ///
    /// # Errors
    /// When it is neither, or says something that isn't allowed.
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        Self::of(&parse::tree(text, file)?, file)
    }

    /// The same, with variables of an environment over it.
    pub(super) fn parse_over(
        text: &str,
        file: &str,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut tree = parse::tree(text, file)?;
        let overlay = Overlay::of(variables)?;
        if !overlay.strangers.is_empty() {
            static ONCE: Once = Once::new();
            let names = overlay.strangers.join(", ");
            ONCE.call_once(|| {
                tracing::warn!(
                    "{names}: no key of the configuration, so this has no effect; a key's path is written with `__` \
                     between its parts, as in PENSTOCK_POOLS__0__QUEUE__TTL"
                );
            });
        }
        overlay.apply(&mut tree)?;
        Self::of(&tree, file)
    }

    /// Checks a tree that was read from `file`.
    fn of(tree: &Node, file: &str) -> Result<Self, Error> {
        let error = |place: &Place, key: String, message: String| match place {
            Place::Line(0) => Error::Value {
                origin: file.to_owned(),
                key,
                message,
            },
            Place::Line(line) => Error::Document {
                file: file.to_owned(),
                line: *line,
                key,
                message,
            },
            Place::Variable(name) => Error::Value {
                origin: environment::origin(name),
                key,
                message,
            },
        };
        let document = if tree.is_empty() {
            raw::Document::default()
        } else {
            raw::Document::deserialize(Reader(tree)).map_err(|wrong| {
                let key = wrong.key();
                error(wrong.place.as_ref().unwrap_or(&tree.place), key, wrong.message)
            })?
        };
        let shown = document.clone();
        let says_trust = document.identity.trust.is_some();
        let config = Config::try_from(document)
            .map_err(|Broken(key, message)| error(tree.place_of(&key), key, message))?;
        let json = serde_json::to_value(shown.in_force())
            .map_err(|why| error(&tree.place, "document".into(), why.to_string()))?;
        let mut document = Self {
            config,
            digest: String::new(),
            json,
            says_trust,
        };
        let mut hasher = DefaultHasher::new();
        document.json.to_string().hash(&mut hasher);
        if document.shown() != document.json {
            // From the digest, which is shown, nobody can try out passwords.
            static KEY: OnceLock<RandomState> = OnceLock::new();
            KEY.get_or_init(RandomState::new)
                .hash_one(hasher.finish())
                .hash(&mut hasher);
        }
        document.digest = format!("{:016x}", hasher.finish());
        Ok(document)
    }

    /// The document that `text` is, in place of this one: a password that it doesn't say, but shows that there is one, is
    /// that of this one.
    ///
    /// # Errors
    /// When it isn't allowed.
    pub fn replaced(&self, text: &str, name: &str) -> Result<Self, Error> {
        if let Ok(mut json) = serde_json::from_str(text)
            && redis_url::unmask(&mut json, &self.json)
        {
            return Self::of(&Node::of(&json), name);
        }
        Self::parse(text, name)
    }

    /// Every key with its value in force, in the file's notation, but for passwords.
    #[must_use]
    pub fn shown(&self) -> Value {
        let mut json = self.json.clone();
        redis_url::mask(&mut json);
        json
    }

    /// What is shown, but for what must be said and wasn't: that isn't said by a change of something else.
    fn said(&self) -> Value {
        let mut json = self.json.clone();
        if !self.says_trust
            && let Some(identity) = json.get_mut("identity").and_then(Value::as_object_mut)
        {
            identity.shift_remove("trust");
        }
        json
    }

    /// This document changed by a JSON merge patch (RFC 7396), but for `pools`: those are told apart by their names, not
    /// replaced as a list: `{"pools": [{"name": "a", ...}]}` or `{"pools": {"a": {...}}}`. `{"pools": {"a": null}}` takes
    /// one out, and so does `endpoints: null` as its only key besides its name.
    ///
    /// # Errors
    /// When what comes of it isn't allowed.
    pub fn patched(&self, patch: &Value) -> Result<Self, Error> {
        let mut json = self.said();
        patch::merge(&mut json, patch);
        redis_url::unmask(&mut json, &self.json);
        Self::of(&Node::of(&json), "patch")
    }

    /// What the program holds to.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What the program holds to, by itself.
    #[must_use]
    pub fn into_config(self) -> Config {
        self.config
    }

    /// Every key with its value in force, in the file's notation, passwords as well: for nobody's eyes.
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// The same as YAML, to be written to a file.
    ///
    /// # Errors
    /// When it has no YAML form, which no document leads to.
    pub fn yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&self.said())
    }

    /// Sixteen hex digits that change when any value does.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
