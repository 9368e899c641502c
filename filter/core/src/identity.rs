//! The identity of a request: the policy lists sources for each field, and the first source that the request has wins.
//!
//! Headers and metadata are available with the headers; body strings and the model only at the end of the body. So each
//! list is evaluated twice: `IdentityClaims::gather` reads the headers up to the first source that has a value, and keeps
//! the sources before it; `IdentityClaims::resolve` decides once the body is known. For an untrusted client the filter
//! doesn't read class, strict tier and head start; the other fields are passed on for the companion to judge.

use std::sync::Arc;

use penstock_wire::Register;
use penstock_wire::limits::{JUMP_S_MAX, NAME_BYTES_MAX, STRICT_MAX};
use wildmatch::WildMatch;

use crate::body::Body;
use crate::headers::Headers;
use crate::metadata;
use crate::properties::Properties;

/// A place in a request that holds an identity value.
#[derive(Clone, Debug)]
pub enum Source {
    /// A request header.
    Header(String),
    /// The body string with this index in `CompiledPolicy::body_keys`.
    Body(usize),
    /// Dynamic metadata: the filter's name, then keys.
    Metadata(Vec<String>),
    /// A value by the requested model; the first glob that matches wins.
    Model(Arc<[Rule]>),
}

/// One row of a model table.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Matches the requested model.
    pub glob: WildMatch,
    /// The value for matching models.
    pub value: String,
}

/// The source lists of a policy.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The tenant: the request takes from its share.
    pub fairness_id: Vec<Source>,
    /// The user: the request adds to its usage.
    pub user: Vec<Source>,
    /// The criticality band.
    pub priority: Vec<Source>,
    /// The policy class.
    pub class: Vec<Source>,
    /// The strict tier.
    pub strict: Vec<Source>,
    /// The head start in seconds.
    pub jump: Vec<Source>,
}

/// A source that may decide a field once the body is known.
#[derive(Clone, Debug)]
enum Candidate {
    Value(String),
    Body(usize),
    Model(Arc<[Rule]>),
}

/// The identity values of the headers, and the sources that need the body.
#[derive(Clone, Debug, Default)]
pub struct IdentityClaims {
    fairness_id: Vec<Candidate>,
    user: Vec<Candidate>,
    priority: Vec<Candidate>,
    class: Vec<Candidate>,
    strict: Vec<Candidate>,
    jump: Vec<Candidate>,
}

impl IdentityClaims {
    /// Reads the sources that are available with the headers.
    #[must_use]
    pub fn gather(sources: &Sources, trusted: bool, headers: Headers<'_>, host: &impl Properties) -> Self {
        let list = |sources: &[Source]| gather(sources, headers, host);
        let privileged = |sources: &[Source]| if trusted { list(sources) } else { Vec::new() };
        Self {
            fairness_id: list(&sources.fairness_id),
            user: list(&sources.user),
            priority: list(&sources.priority),
            class: privileged(&sources.class),
            strict: privileged(&sources.strict),
            jump: privileged(&sources.jump),
        }
    }

    /// Decides each field and writes it into `register`. A verified tenant stays. A strict tier or a head start that isn't
    /// a whole number, or is out of range, counts as absent.
    pub fn resolve(&self, body: &Body, register: &mut Register) {
        if !register.tenant_verified {
            let (fairness_id, private) = resolve(&self.fairness_id, body).unwrap_or_default();
            register.fairness_id = fairness_id;
            register.fairness_id_private = private;
        }
        let text = |list: &[Candidate]| resolve(list, body).map(|(value, _)| value);
        register.user = text(&self.user).unwrap_or_default();
        register.priority = text(&self.priority).unwrap_or_default();
        register.class = text(&self.class).unwrap_or_default();
        let number = |list: &[Candidate], max: u32| {
            let value: u32 = text(list)?.parse().ok()?;
            (value <= max).then_some(value)
        };
        register.strict = number(&self.strict, STRICT_MAX);
        register.jump_s = number(&self.jump, JUMP_S_MAX);
    }
}

fn gather(sources: &[Source], headers: Headers<'_>, host: &impl Properties) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for source in sources {
        let value = match source {
            Source::Header(name) => headers.text(name, NAME_BYTES_MAX),
            Source::Metadata(keys) => {
                let path: Vec<&str> = ["metadata", "filter_metadata"]
                    .into_iter()
                    .chain(keys.iter().map(String::as_str))
                    .collect();
                host.property(&path).and_then(|value| metadata::text(&value))
            }
            Source::Body(index) => {
                candidates.push(Candidate::Body(*index));
                None
            }
            Source::Model(rules) => {
                candidates.push(Candidate::Model(Arc::clone(rules)));
                None
            }
        };
        if let Some(value) = value {
            candidates.push(Candidate::Value(value));
            break;
        }
    }
    candidates
}

/// The value of a field, and whether the value is from the body.
fn resolve(candidates: &[Candidate], body: &Body) -> Option<(String, bool)> {
    candidates.iter().find_map(|candidate| match candidate {
        Candidate::Value(value) => Some((value.clone(), false)),
        Candidate::Body(index) => Some((body.identities.get(*index)?.clone()?, true)),
        Candidate::Model(rules) => {
            let rule = rules.iter().find(|rule| rule.glob.matches(&body.model))?;
            Some((rule.value.clone(), false))
        }
    })
}
