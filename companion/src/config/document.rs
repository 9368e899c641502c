//! The document itself: every key with its value in force, as it is shown, changed and written at run time.
//!
//! [`Config`] is what the program holds to; a document is how people say it. A change makes another document, whole and
//! checked, or an error that says where it is wrong; there is none that is half changed.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use serde_json::Value;

use super::{Config, Error};

/// A document that is valid.
#[derive(Clone, Debug)]
pub struct Document {
    config: Config,
    json: Value,
    digest: String,
}

impl Document {
    /// Reads a file, and the environment over it.
    ///
    /// # Errors
    /// When the file can't be read, isn't YAML, or says something that isn't allowed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Checks a text of YAML or JSON, which `file` names in errors. The environment says nothing here.
    ///
    /// # Errors
    /// When it is neither, or says something that isn't allowed.
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        let config = Config::parse(text, file)?;
        let json: Value = serde_saphyr::from_str(text).map_err(|error| Error::Document {
            file: file.to_owned(),
            line: 1,
            key: "document".into(),
            message: error.to_string(),
        })?;
        let mut hasher = DefaultHasher::new();
        json.to_string().hash(&mut hasher);
        Ok(Self {
            config,
            digest: format!("{:016x}", hasher.finish()),
            json,
        })
    }

    /// This document changed by a JSON merge patch (RFC 7396), but for `pools`: those are told apart by their names, not
    /// replaced as a list; `null` as a pool's only other key takes it out.
    ///
    /// # Errors
    /// When what comes of it isn't allowed.
    pub fn patched(&self, patch: &Value) -> Result<Self, Error> {
        let mut json = self.json.clone();
        json_patch::merge(&mut json, patch);
        Self::parse(&json.to_string(), "patch")
    }

    /// What the program holds to.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Every key with its value in force, in the file's notation.
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// The same as YAML, to be written to a file.
    ///
    /// # Errors
    /// When it has no YAML form, which no document leads to.
    pub fn yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&self.json)
    }

    /// Sixteen hex digits that change when any value does.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
