//! Envoy HTTP filters that an operator puts before Penstock's filter, for example one that checks tokens.
//!
//! A file contains one of Envoy's `HttpFilter` objects, or a list of them, in YAML or JSON, as in a bootstrap. Only the
//! shape is checked here, so that an error names the file; Envoy validates the filters themselves.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

const FILE_BYTES_MAX: u64 = 1 << 20;
const FILTERS_MAX: usize = 16;
/// Names that are in the filter list already, or end it.
const TAKEN: [&str; 2] = ["penstock", "envoy.filters.http.router"];

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct Error {
    file: String,
    why: String,
}

/// The filters of several files, in order.
///
/// # Errors
/// When a file can't be used.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(read(path)?);
    }
    Ok(all)
}

/// The filters of one file, in order.
///
/// # Errors
/// When the file can't be read, or isn't of the expected form.
pub fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let error = |why: String| Error { file: path.display().to_string(), why };
    let mut text = String::new();
    let file = File::open(path).map_err(|why| error(why.to_string()))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.map_err(|why| error(why.to_string()))?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(error(format!("the file has more than {FILE_BYTES_MAX} bytes")));
    }
    parse(&text).map_err(error)
}

fn parse(text: &str) -> Result<Vec<Value>, String> {
    let document: Value = serde_saphyr::from_str(text).map_err(|why| why.to_string())?;
    let filters = match document {
        Value::Array(filters) => filters,
        one => vec![one],
    };
    if filters.is_empty() || filters.len() > FILTERS_MAX {
        return Err(format!(
            "the file must contain one HTTP filter, or a list of 1 to {FILTERS_MAX}; there are {}",
            filters.len()
        ));
    }
    for (index, filter) in filters.iter().enumerate() {
        check(filter).map_err(|why| format!("filter {}: {why}", index + 1))?;
    }
    Ok(filters)
}

fn check(filter: &Value) -> Result<(), String> {
    let Value::Object(members) = filter else {
        return Err("it must be an object with `name` and `typed_config`".into());
    };
    let name = members.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Err(
            "`name` must be a text with the filter's name, for example `envoy.filters.http.jwt_authn`".into(),
        );
    }
    if TAKEN.contains(&name) {
        return Err(format!("`{name}` is in the list already, and may not appear twice"));
    }
    let config = members.get("typed_config").and_then(|config| config.get("@type"));
    if config.and_then(Value::as_str).is_none() {
        return Err(format!(
            "`typed_config` of `{name}` must be an object with `@type`, for example \
             `type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "name: a\ntyped_config: {'@type': type.googleapis.com/x.A, key: 1}\n";

    #[test]
    fn one_filter_or_a_list_is_read_from_yaml_or_json() {
        let one = parse(ONE).expect("a filter");
        assert_eq!(one.len(), 1);
        assert_eq!(one[0]["typed_config"]["key"], 1);
        let json = serde_json::to_string(&[&one[0], &one[0]]).expect("JSON");
        assert_eq!(parse(&json).expect("two").len(), 2);
    }

    #[test]
    fn malformed_filters_are_rejected_with_their_number() {
        for (text, why) in [
            ("[]", "there are 0"),
            ("- a", "filter 1: it must be an object"),
            ("typed_config: {'@type': x}", "filter 1: `name` must be a text"),
            ("{name: 7, typed_config: {'@type': x}}", "filter 1: `name` must be a text"),
            ("name: a", "`typed_config` of `a`"),
            ("{name: a, typed_config: {key: 1}}", "`typed_config` of `a`"),
            ("{name: penstock, typed_config: {'@type': x}}", "`penstock` is in the list already"),
            ("{name: envoy.filters.http.router, typed_config: {'@type': x}}", "in the list already"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = format!("[{}]", vec!["{name: a, typed_config: {'@type': x}}"; 17].join(","));
        assert!(parse(&many).expect_err("too many").contains("there are 17"));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.yaml");
        let absent = read(&path).expect_err("absent").to_string();
        assert!(absent.contains("f.yaml: "), "{absent}");
        std::fs::write(&path, ONE).expect("written");
        assert_eq!(read(&path).expect("read").len(), 1);
        let large = format!("{ONE}#{}", "x".repeat(1 << 20));
        std::fs::write(&path, large).expect("written");
        assert!(read(&path).expect_err("large").to_string().contains("more than 1048576 bytes"));
    }
}
