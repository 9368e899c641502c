//! The file of `identity.api_keys`: the SHA-256 digests of the keys of each tenant.
//!
//! A person may write a key where its digest belongs, so no message shows a text of the file, except a tenant's name that
//! doesn't look like a key.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_wire::limits::{API_KEYS_MAX, NAME_BYTES_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::tree::{Kind, Node, Place};
use super::value::{self, List, Short};
use super::yaml::{self, YamlError};

/// A tenant's key, identified by its SHA-256.
pub type Digest = [u8; 32];

/// What comes before the digits of a digest.
pub const DIGEST_PREFIX: &str = "sha256:";

/// Bytes of the file: each digest with a name and the punctuation fits several times.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// A text without spaces of this length is taken for a key.
const KEY_CHARS_MIN: usize = 20;

/// API keys of tenants. A request with a wrong key is answered 401 `invalid_api_key`, on every path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeys {
    /// The file with the SHA-256 digests of the keys, by tenant: `acme: ["sha256:..."]`; `penstock api-key` makes a key and its digest.
    /// At most 10,000. The file is read again when it changes.
    pub file: PathBuf,
    /// The request headers that may hold a key. The first one that holds one counts. `authorization` holds it as `Bearer KEY`, every
    /// other header as it is.
    #[serde(default = "key_headers", deserialize_with = "value::list")]
    #[schemars(with = "List<String>")]
    pub headers: Vec<String>,
    /// Whether a request without a key is answered 401. Otherwise the sources of `fairness_id` decide.
    #[serde(default = "yes")]
    pub required: bool,
    /// Whether the headers with keys pass on to the model server. Otherwise the filter removes them.
    #[serde(default)]
    pub forward: bool,
    /// The content of the file. Empty, which lets no key in, until [`Config::read_secrets`](super::Config::read_secrets).
    #[serde(skip)]
    pub table: ApiKeyTable,
}

fn key_headers() -> Vec<String> {
    ["authorization", "x-api-key", "api-key"].map(str::to_owned).into()
}

const fn yes() -> bool {
    true
}

impl From<String> for ApiKeys {
    fn from(file: String) -> Self {
        Self {
            file: file.into(),
            headers: key_headers(),
            required: yes(),
            forward: false,
            table: ApiKeyTable::default(),
        }
    }
}

impl Short for ApiKeys {
    const ALLOWED: &'static str = "the path of a file, or {file: ...}";
}

/// The tenants of all keys. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeyTable(Arc<BTreeMap<Digest, Arc<str>>>);

impl ApiKeyTable {
    /// Reads the file.
    ///
    /// # Errors
    /// When it can't be read, isn't a mapping of tenants to lists of digests, or has more than [`API_KEYS_MAX`] keys.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let unreadable = |why: String| Error::Value {
            origin: "identity.api_keys.file".into(),
            key: file.clone(),
            message: why,
        };
        let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if length > FILE_BYTES_MAX {
            return Err(unreadable(format!("the file has more than {FILE_BYTES_MAX} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = yaml::utf8(bytes).map_err(|error| Error::from_yaml(error, &file))?;
        Self::parse(&text, &file)
    }

    /// Reads the file's text. `file` names it in errors.
    ///
    /// # Errors
    /// As [`ApiKeyTable::read`].
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        let tree = yaml::document(text).map_err(|error| unparsed(error, file))?;
        if !tree.is_map() && !tree.is_null() {
            return Err(wrong(
                &tree.place,
                file,
                "document".into(),
                "must be a mapping of tenants to lists of digests",
            ));
        }
        let mut keys = BTreeMap::new();
        for entry in tree.entries() {
            let shown = shown(&entry.key);
            if !(1..=NAME_BYTES_MAX).contains(&entry.key.len()) {
                let message = format!("a tenant's name has 1 to {NAME_BYTES_MAX} bytes");
                return Err(wrong(&entry.place, file, shown, message));
            }
            let Some(digests) = entry.value.items() else {
                let message = format!("must be a list of digests, like [\"{DIGEST_PREFIX}...\"]");
                return Err(wrong(&entry.place, file, shown, message));
            };
            let tenant: Arc<str> = entry.key.as_str().into();
            for (index, node) in digests.iter().enumerate() {
                let key = format!("{shown}[{index}]");
                add(&mut keys, node, &tenant).map_err(|message| wrong(&node.place, file, key, message))?;
            }
        }
        Ok(Self(Arc::new(keys)))
    }

    /// Digests and tenants, sorted by digest.
    pub fn iter(&self) -> impl Iterator<Item = (&Digest, &str)> {
        self.0.iter().map(|(digest, tenant)| (digest, &**tenant))
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no tenant has a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The digests stay out of every log.
impl fmt::Debug for ApiKeyTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} keys", self.len())
    }
}

/// Adds a digest, or returns what is wrong with it.
fn add(keys: &mut BTreeMap<Digest, Arc<str>>, node: &Node, tenant: &Arc<str>) -> Result<(), String> {
    let text = match &node.kind {
        Kind::Text(text) => text.as_str(),
        _ => "",
    };
    let digest = digest(text).ok_or_else(|| {
        format!(
            "must be `{DIGEST_PREFIX}` and 64 hexadecimal digits, which `penstock api-key` prints; a key itself doesn't \
             belong in this file"
        )
    })?;
    match keys.insert(digest, tenant.clone()) {
        None => {}
        Some(other) if other == *tenant => return Err("the tenant has this digest twice".into()),
        Some(other) => {
            return Err(format!("tenant {} has the same digest; a key is one tenant's", shown(&other)));
        }
    }
    if keys.len() > API_KEYS_MAX {
        return Err(format!("the file has more than {API_KEYS_MAX} keys"));
    }
    Ok(())
}

fn digest(text: &str) -> Option<Digest> {
    let (pairs, []) = text.strip_prefix(DIGEST_PREFIX)?.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = pairs.iter().map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// A tenant's name in an error, unless a key may have been written in its place.
fn shown(tenant: &str) -> String {
    let is_word = tenant.bytes().all(|byte| byte.is_ascii_graphic());
    let is_like_a_key = ["pk-", "sk-", DIGEST_PREFIX].iter().any(|prefix| tenant.starts_with(prefix))
        || tenant.len() >= KEY_CHARS_MIN && is_word;
    if is_like_a_key { "(a tenant whose name looks like a key)".into() } else { tenant.to_owned() }
}

/// An error of the parser, without its message, which may quote the text.
fn unparsed(error: YamlError, file: &str) -> Error {
    let (key, message) = match &error.key {
        Some(tenant) => (shown(tenant), "this tenant is written twice; put all its digests into one list"),
        None => ("document".into(), "this isn't YAML"),
    };
    wrong(&Place::Line(error.line), file, key, message)
}

fn wrong(place: &Place, file: &str, key: String, message: impl Into<String>) -> Error {
    Error::at_place(place, file, key, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(number: u8) -> String {
        format!("{number:02x}").repeat(32)
    }

    fn error(text: &str) -> String {
        ApiKeyTable::parse(text, "k.yaml").expect_err(text).to_string()
    }

    #[test]
    fn tenants_have_lists_of_digests() {
        let (a, b, c) = (digits(9), digits(1), digits(0xab));
        let text = format!(
            "acme:\n- sha256:{a}\n- \"sha256:{b}\"\n\"42\": [\"sha256:{}\"]\nnone: []\n",
            c.to_uppercase()
        );
        let table = ApiKeyTable::parse(&text, "k.yaml").expect("valid");
        let keys: Vec<_> = table.iter().map(|(digest, tenant)| (digest[0], tenant)).collect();
        assert_eq!(keys, [(1, "acme"), (9, "acme"), (0xab, "42")]);
        let json = format!("{{\"acme\": [\"sha256:{a}\"]}}");
        assert_eq!(ApiKeyTable::parse(&json, "k.json").expect("valid").len(), 1);
        for empty in ["", "{}", "# none yet\n"] {
            assert!(ApiKeyTable::parse(empty, "k.yaml").expect("valid").is_empty());
        }
        assert_eq!(format!("{table:?}"), "3 keys");
    }

    #[test]
    fn errors_name_line_tenant_and_what_is_allowed() {
        let (a, b) = (digits(9), digits(1));
        for (text, place, word) in [
            (format!("acme:\n- sha256:{a}\n- sha256:12\n"), "k.yaml:3: acme[1]: ", "64 hexadecimal digits"),
            (format!("acme: [\"{a}\"]"), "k.yaml:1: acme[0]: ", "`sha256:` and 64"),
            ("acme: [7]".into(), "k.yaml:1: acme[0]: ", "64 hexadecimal"),
            ("\nacme: 7".into(), "k.yaml:2: acme: ", "a list of digests"),
            ("- acme".into(), "k.yaml:1: document: ", "a mapping of tenants"),
            ("\"\": []".into(), "k.yaml:1: : ", "1 to 256 bytes"),
            (
                format!("acme: [\"sha256:{a}\"]\nb: [\"sha256:{b}\", \"sha256:{a}\"]"),
                "k.yaml:2: b[1]: ",
                "tenant acme has",
            ),
            (format!("acme: [\"sha256:{a}\", \"sha256:{a}\"]"), "k.yaml:1: acme[1]: ", "twice"),
            (
                format!("acme: [\"sha256:{a}\"]\nacme: []"),
                "k.yaml:2: acme: ",
                "put all its digests into one list",
            ),
        ] {
            let message = error(&text);
            assert!(message.starts_with(place) && message.contains(word), "{message}");
        }
    }

    #[test]
    fn no_message_shows_a_key() {
        const KEY: &str = "pk-0123456789abcdefghijkl";
        for text in [
            KEY.to_owned(),
            format!("[{KEY}]"),
            format!("acme: {KEY}"),
            format!("acme: [{KEY}]"),
            format!("acme: [\"sha256:{KEY}\"]"),
            format!("{KEY}: acme"),
            format!("{KEY}: [acme]"),
            format!("{KEY}: []\n{KEY}: []"),
            format!("acme: [\"{KEY}\n"),
            format!("acme: *{KEY}"),
            format!("{KEY}\nacme: []"),
        ] {
            let message = error(&text);
            assert!(!message.contains("0123456789"), "{message}");
        }
    }

    #[test]
    fn the_number_of_keys_has_a_limit() {
        let list = |count: usize| {
            let digests = (0..count).map(|number| format!("- sha256:{number:064x}\n"));
            format!("acme:\n{}", digests.collect::<String>())
        };
        let most = ApiKeyTable::parse(&list(API_KEYS_MAX), "k.yaml").expect("valid");
        assert_eq!(most.len(), API_KEYS_MAX);
        assert!(error(&list(API_KEYS_MAX + 1)).contains("more than 10000 keys"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_key() {
        let message = ApiKeyTable::read(Path::new("no/such/keys.yaml")).expect_err("no file").to_string();
        assert!(message.starts_with("identity.api_keys.file: no/such/keys.yaml: "), "{message}");
    }
}
