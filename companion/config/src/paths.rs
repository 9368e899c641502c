//! Which requests are queued, pass or are refused, by their paths: the operator's lists, and the defaults beside them.

mod defaults;
mod page;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::defaults::{DEFAULTS, DefaultPath};
pub use self::page::paths_page;
use crate::error::Violation;
use crate::value::List;

/// Entries of one list.
const ENTRIES_MAX: usize = 1_000;
/// Bytes of an entry.
const ENTRY_BYTES_MAX: usize = 1_024;

/// What happens to a request for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAction {
    /// It is queued, unless its method is GET, HEAD, OPTIONS or DELETE.
    Queue,
    /// It passes to the pool of its model, and isn't queued.
    Pass,
    /// It is answered 403.
    Refuse,
}

/// The end of requests for paths that no list names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OtherPaths {
    /// They are answered 404.
    #[default]
    Refuse,
    /// They pass, and aren't queued.
    Pass,
}

/// What happens to requests, by their paths. These lists come before the defaults in docs/paths.md: a path that one of them names, or the
/// beginning of which one of them names with `*` at its end, isn't looked up there. Paths are compared decoded, in lower case, without
/// parameters, doubled and trailing slashes, dot segments, and white space.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PathLists {
    /// Paths for which a server computes. A request whose method isn't GET, HEAD, OPTIONS or DELETE is queued.
    pub(crate) queued: List<String>,
    /// Paths that pass to the pool of the request's model, and aren't queued.
    pub(crate) passed: List<String>,
    /// Paths that are answered 403.
    pub(crate) refused: List<String>,
    /// What happens to paths that no list names.
    pub(crate) other: OtherPaths,
}

/// The operator's paths.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// Each with its action, the most specific counts.
    pub entries: Vec<(String, PathAction)>,
    /// What happens to paths that no list names.
    pub other: OtherPaths,
}

impl PathLists {
    pub(crate) fn checked(self) -> Result<Paths, Violation> {
        let lists = [
            ("queued", self.queued, PathAction::Queue),
            ("passed", self.passed, PathAction::Pass),
            ("refused", self.refused, PathAction::Refuse),
        ];
        let mut entries: Vec<(String, PathAction)> = Vec::new();
        for (key, list, action) in lists {
            if list.0.len() > ENTRIES_MAX {
                return Err(Violation::new(
                    format!("paths.{key}"),
                    format!(
                        "at most {ENTRIES_MAX} paths, not {}; one with `*` at its end names many",
                        list.0.len()
                    ),
                ));
            }
            for (index, entry) in list.0.into_iter().enumerate() {
                let key = || format!("paths.{key}[{index}]");
                let beginning = entry.strip_suffix('*').unwrap_or(&entry);
                let is_path = entry == "*" || beginning.starts_with('/');
                if !is_path || beginning.contains(['*', '?', '#']) || entry.len() > ENTRY_BYTES_MAX {
                    return Err(Violation::new(
                        key(),
                        format!(
                            "`{entry}`: a path begins with `/`, has no query and at most {ENTRY_BYTES_MAX} bytes; with `*` at its end it \
                             is the beginning of paths"
                        ),
                    ));
                }
                if entries.iter().any(|(other, _)| is_same(other, &entry)) {
                    return Err(Violation::new(key(), format!("`{entry}` is in these lists twice")));
                }
                entries.push((entry, action));
            }
        }
        Ok(Paths { entries, other: self.other })
    }
}

impl Paths {
    /// All entries with their actions: the operator's, then the defaults that none of these covers.
    pub fn all(&self) -> impl Iterator<Item = (&str, PathAction)> {
        let own = self.entries.iter().map(|(path, action)| (path.as_str(), *action));
        let defaults = DEFAULTS.iter().filter(|default| !self.covers(default.path));
        own.chain(defaults.map(|default| (default.path, default.action)))
    }

    fn covers(&self, path: &str) -> bool {
        self.entries.iter().any(|(entry, _)| match entry.strip_suffix('*') {
            Some(beginning) => {
                let beginning = beginning.to_ascii_lowercase();
                path.starts_with(&beginning) || beginning.strip_suffix('/') == Some(path)
            }
            None => is_same(entry, path),
        })
    }
}

fn is_same(one: &str, other: &str) -> bool {
    let path = |entry: &str| {
        if entry.len() > 1 { entry.trim_end_matches('/').to_ascii_lowercase() } else { entry.to_owned() }
    };
    path(one) == path(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(paths: &str) -> Result<Paths, String> {
        let text =
            format!("pools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']}}}}]\npaths: {paths}\n");
        Config::parse(&text, "f.yaml").map(|config| config.paths).map_err(|error| error.to_string())
    }

    fn action(paths: &Paths, path: &str) -> Vec<PathAction> {
        paths.all().filter(|(entry, _)| *entry == path).map(|(_, action)| action).collect()
    }

    #[test]
    fn the_operators_entries_come_before_the_defaults_and_cover_them() {
        let paths =
            parse("{passed: [/V1/load_lora_adapter, '/v1/audio/*'], queued: [/mine]}").expect("valid");
        assert_eq!(action(&paths, "/v1/load_lora_adapter"), []);
        assert_eq!(action(&paths, "/V1/load_lora_adapter"), [PathAction::Pass]);
        assert_eq!(action(&paths, "/v1/audio/speech"), []);
        assert_eq!(action(&paths, "/mine"), [PathAction::Queue]);
        assert_eq!(action(&paths, "/v1/chat/completions"), [PathAction::Queue], "the other defaults stay");
        assert_eq!(paths.other, OtherPaths::Refuse);
    }

    #[test]
    fn defaults_are_canonical_and_each_is_there_once() {
        for (index, default) in DEFAULTS.iter().enumerate() {
            let path = default.path;
            let beginning = path.strip_suffix('*').unwrap_or(path);
            let is_canonical = path == "/" || !beginning.ends_with('/') || path.ends_with('*');
            assert!(path.starts_with('/') && is_canonical && path == path.to_ascii_lowercase(), "{path}");
            assert!(!beginning.contains("//") && !beginning.contains('*'), "{path}");
            assert!(!default.engines.is_empty(), "{path}");
            assert!(DEFAULTS.iter().take(index).all(|other| other.path != path), "{path} twice");
        }
    }
}
