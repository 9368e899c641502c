//! Which requests are queued, pass or are refused, by their paths.
//!
//! A server may run a path that is spelled otherwise than the policy spells it, so paths are compared in the form in which the most lenient
//! server would run them.

use penstock_wire::{self as wire, Api, PathAction};

/// APIs that several engines have, by the end of a path under an entry that names the beginnings of paths.
const APIS: [(&[u8], Api); 5] = [
    (b"/chat/completions", Api::ChatCompletions),
    (b"/completions", Api::Completions),
    (b"/embeddings", Api::Embeddings),
    (b"/responses", Api::Responses),
    (b"/messages", Api::Messages),
];

/// The paths of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    /// Sorted, in canonical form.
    exact: Vec<(Vec<u8>, Rule)>,
    /// Beginnings of paths, the longest first.
    beginnings: Vec<(Vec<u8>, Rule)>,
    /// Paths that no entry names pass.
    others_pass: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    action: PathAction,
    api: Api,
}

/// What happens to a request, by its method and its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// It is queued.
    Queued(Api),
    /// It passes, and isn't queued.
    Passed,
    /// It asks which models there are, or for one of them. It passes while the filter doesn't know them.
    Models,
    /// It is refused, because it controls a server.
    Refused,
    /// It is refused, because no list names its path.
    Unknown,
}

impl Paths {
    /// Of equal entries, the first counts.
    pub(crate) fn new(routes: &[wire::Route], others_pass: bool) -> Self {
        let mut paths = Self { others_pass, ..Self::default() };
        for route in routes {
            let rule = Rule { action: route.action(), api: route.api() };
            let (list, path) = match route.path.strip_suffix('*') {
                Some(beginning) => (&mut paths.beginnings, canonical_beginning(beginning.as_bytes())),
                None => (&mut paths.exact, canonical(route.path.as_bytes())),
            };
            list.push((path, rule));
        }
        // The sorts are stable, so that of equal entries the first is found.
        paths.exact.sort_by(|(a, _), (b, _)| a.cmp(b));
        paths.exact.dedup_by(|(later, _), (first, _)| later == first);
        paths.beginnings.sort_by_key(|(path, _)| core::cmp::Reverse(path.len()));
        paths
    }

    /// What happens to a request. The path may have a query.
    pub(crate) fn of(&self, method: &[u8], path: &[u8]) -> PathUse {
        let path = without_query(path);
        // An entry is in canonical form, so a path that equals one is, too. Most do.
        let rule = self.exact(path).or_else(|| self.find(&canonical(path)));
        // These methods compute nothing: a server answers them, or says that it can't.
        let computes = !matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"DELETE");
        let passes = match rule.map(|rule| rule.action) {
            Some(PathAction::Refuse) => return PathUse::Refused,
            Some(PathAction::Queue) if computes => {
                return PathUse::Queued(rule.map_or(Api::Other, |rule| rule.api));
            }
            Some(PathAction::Queue | PathAction::Pass) => true,
            None => self.others_pass,
        };
        // Servers read such a path in more than one way, so that one of them may compute.
        if !passes || computes && is_ambiguous(path) {
            PathUse::Unknown
        } else if matches!(method, b"GET" | b"HEAD") && is_list_or_model(&canonical(path)) {
            PathUse::Models
        } else {
            PathUse::Passed
        }
    }

    /// The API whose error format a path's client expects: that of the queued path that is the path, or begins it.
    pub(crate) fn dialect(&self, path: &[u8]) -> Api {
        let path = canonical(without_query(path));
        let ends = (1..=path.len()).rev().filter(|end| matches!(path.get(*end), None | Some(b'/')));
        let queued = |rule: &Rule| rule.action == PathAction::Queue;
        let mut rules = ends.filter_map(|end| self.exact(path.get(..end)?)).filter(queued);
        rules.next().map_or(Api::Unspecified, |rule| rule.api)
    }

    fn exact(&self, path: &[u8]) -> Option<Rule> {
        let found = self.exact.binary_search_by(|(known, _)| known.as_slice().cmp(path)).ok()?;
        self.exact.get(found).map(|(_, rule)| *rule)
    }

    fn find(&self, path: &[u8]) -> Option<Rule> {
        let begins = |(beginning, _): &&(Vec<u8>, Rule)| {
            // `/a/*` also names what a server would answer at `/a/`.
            path.starts_with(beginning) || beginning.strip_suffix(b"/") == Some(path)
        };
        let of_end = |(_, rule): &(Vec<u8>, Rule)| {
            let known = APIS.iter().find(|(end, _)| path.ends_with(end));
            Rule { api: known.map_or(rule.api, |(_, api)| *api), ..*rule }
        };
        self.exact(path).or_else(|| self.beginnings.iter().find(begins).map(of_end))
    }
}

pub(crate) fn without_query(path: &[u8]) -> &[u8] {
    path.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or(path)
}

/// A path in the form in which paths are compared: decoded as often as it is encoded, in lower case, without parameters, empty segments, dot
/// segments, and white space at the end of segments.
fn canonical(path: &[u8]) -> Vec<u8> {
    let decoded = decoded(path);
    // A server may end a path at an encoded question mark or number sign, and one in C at a null byte.
    let path = decoded.split(|byte| matches!(byte, b'?' | b'#' | 0)).next().unwrap_or(&decoded);
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        let segment = segment.split(|byte| *byte == b';').next().unwrap_or(segment);
        let end = segment.iter().rposition(|byte| !is_blank(*byte)).map_or(0, |last| last.saturating_add(1));
        let segment = segment.get(..end).unwrap_or(segment);
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    let mut canonical = Vec::with_capacity(path.len().saturating_add(1));
    for segment in &segments {
        canonical.push(b'/');
        canonical.extend_from_slice(segment);
    }
    if canonical.is_empty() {
        canonical.push(b'/');
    }
    canonical
}

/// The canonical form of the beginning of a path: a slash at its end stays.
fn canonical_beginning(beginning: &[u8]) -> Vec<u8> {
    let mut path = canonical(beginning);
    if beginning.is_empty() {
        return Vec::new();
    }
    if beginning.ends_with(b"/") && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path
}

/// Whether a path, in canonical form, is that of the list of models, or of a model in it.
fn is_list_or_model(path: &[u8]) -> bool {
    path.strip_prefix(b"/v1/models").is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// Decodes a path as [`decoded`], and keeps its letters.
pub(crate) fn decoded_with_case(path: &[u8]) -> Vec<u8> {
    let mut decoded: Vec<u8> = Vec::with_capacity(path.len());
    for byte in path {
        decoded.push(*byte);
        while let [.., b'%', high, low] = decoded.as_slice()
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            decoded.truncate(decoded.len().saturating_sub(3));
            decoded.push(high.wrapping_shl(4) | low);
        }
    }
    decoded
}

/// Decodes `%XX` until nothing is encoded, in one pass: what has been decoded may be a part of what the next bytes complete. Letters become
/// lower case, and backslashes slashes.
fn decoded(path: &[u8]) -> Vec<u8> {
    let mut decoded = decoded_with_case(path);
    for byte in &mut decoded {
        *byte = if *byte == b'\\' { b'/' } else { byte.to_ascii_lowercase() };
    }
    decoded
}

/// Whether servers may disagree about the path: where it ends, and what is above what.
fn is_ambiguous(path: &[u8]) -> bool {
    let decoded = decoded(path);
    let ends = decoded.iter().any(|byte| matches!(byte, b'?' | b'#' | 0));
    ends || path.contains(&b'\\')
        || decoded.split(|byte| *byte == b'/').any(|segment| segment.starts_with(b".."))
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a').wrapping_add(10)),
        b'A'..=b'F' => Some(digit.wrapping_sub(b'A').wrapping_add(10)),
        _ => None,
    }
}

const fn is_blank(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn text(path: &str) -> String {
        String::from_utf8(canonical(path.as_bytes())).expect("it was text")
    }

    fn paths(entries: &[(&str, PathAction, Api)], others_pass: bool) -> Paths {
        let route = |&(path, action, api): &(&str, PathAction, Api)| wire::Route {
            path: path.to_owned(),
            api: api.into(),
            action: action.into(),
        };
        Paths::new(&entries.iter().map(route).collect::<Vec<_>>(), others_pass)
    }

    #[test]
    fn paths_of_models() {
        for path in ["/v1/models", "/v1/models/a", "/v1/models/a/b"] {
            assert!(is_list_or_model(path.as_bytes()), "{path}");
        }
        for path in ["/v1/modelsx", "/v1/model", "/models", "/v1"] {
            assert!(!is_list_or_model(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn spellings_that_a_server_may_run_are_one_path() {
        for spelling in [
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "/v1/chat/completions//",
            "//v1//chat/completions",
            "/v1/chat/completions%0a",
            "/v1/chat/completions%0A%20",
            "/v1/chat/completions%2f%0a",
            "/v1/chat/%63ompletions",
            "/v1/chat/%2563ompletions",
            "/v1/chat/%%36%33ompletions",
            "/v1%2Fchat%2Fcompletions",
            "/v1/chat\\completions",
            "/v1/./chat/x/../completions",
            "/v1/x/%2e%2e/chat/completions",
            "/../v1/chat/completions",
            "/v1/chat/completions;a=b",
            "/v1;x/chat;y=1/completions",
            "/v1/chat/completions%3Fa=b",
            "/v1/chat/completions%23",
            "/v1/chat/completions%00.html",
            "/V1/Chat/COMPLETIONS",
            "/v1/chat/completions\t",
            "/v1/chat%20/completions%0a;x",
            "v1/chat/completions",
        ] {
            assert_eq!(text(spelling), "/v1/chat/completions", "{spelling:?}");
        }
        for other in [
            "/v1/chat/completions2",
            "/v1/%20chat/completions",
            "/v1/chat/completions%",
            "/v1/chat/completions%g1",
        ] {
            assert_ne!(text(other), "/v1/chat/completions", "{other:?}");
        }
        assert_eq!(["/", "", "//", "/..", "/%2f", "/ "].map(text), ["/"; 6].map(str::to_owned));
    }

    #[test]
    fn a_long_path_of_nested_codes_takes_one_pass() {
        let nested = format!("/%{}41", "25".repeat(100_000));
        assert_eq!(text(&nested), "/a");
    }

    #[test]
    fn the_most_specific_entry_counts_and_of_equal_ones_the_first() {
        use PathAction::{Pass, Queue, Refuse};
        let paths = paths(
            &[
                ("/v1/*", Pass, Api::Unspecified),
                ("/v1/audio/*", Queue, Api::Other),
                ("/v1/Audio/voices", Pass, Api::Unspecified),
                ("/v1/audio/voices/", Refuse, Api::Unspecified),
                ("/debug*", Refuse, Api::Unspecified),
                ("/v1/messages", Queue, Api::Messages),
            ],
            false,
        );
        for (method, path, expected) in [
            ("POST", "/v1/audio/speech", PathUse::Queued(Api::Other)),
            ("POST", "/v1/audio", PathUse::Queued(Api::Other)),
            ("GET", "/v1/audio/speech", PathUse::Passed),
            ("HEAD", "/v1/messages", PathUse::Passed),
            ("PUT", "/v1/messages", PathUse::Queued(Api::Messages)),
            ("POST", "/v1/messages?beta=true", PathUse::Queued(Api::Messages)),
            ("POST", "/v1/messages/count_tokens", PathUse::Passed),
            ("POST", "/v1/audio/voices", PathUse::Passed),
            ("GET", "/debugger", PathUse::Refused),
            ("GET", "/v2", PathUse::Unknown),
            ("POST", "/v1/models%3f/%252e%252e/chat", PathUse::Unknown),
            ("POST", "/v1/x%00y", PathUse::Unknown),
            ("GET", "/v1/x%00y", PathUse::Passed),
            ("POST", "/v1/audio/chat/completions", PathUse::Queued(Api::ChatCompletions)),
        ] {
            assert_eq!(paths.of(method.as_bytes(), path.as_bytes()), expected, "{method} {path}");
        }
    }

    #[test]
    fn paths_that_no_entry_names_pass_where_the_policy_says_so() {
        assert_eq!(paths(&[], true).of(b"POST", b"/x"), PathUse::Passed);
        assert_eq!(
            paths(&[("*", PathAction::Queue, Api::Other)], true).of(b"POST", b"/x"),
            PathUse::Queued(Api::Other)
        );
    }

    #[test]
    fn errors_have_the_format_of_the_queued_path_that_begins_a_path() {
        let paths = paths(
            &[
                ("/v1/messages", PathAction::Queue, Api::Messages),
                ("/v1/messages/count_tokens", PathAction::Pass, Api::Unspecified),
            ],
            false,
        );
        for (path, api) in [
            ("/v1/messages", Api::Messages),
            ("/v1/messages/count_tokens?x", Api::Messages),
            ("/v1/messagesx", Api::Unspecified),
            ("/v1", Api::Unspecified),
        ] {
            assert_eq!(paths.dialect(path.as_bytes()), api, "{path}");
        }
    }
}
