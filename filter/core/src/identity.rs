//! Who a request is from: the policy's sources, the first that is present wins.
//!
//! Headers and metadata are there when the headers are, body and model only at the body's end. So each list is walked
//! twice: `IdentityClaims::gather` stops at the first value that is there at once and remembers the later ones before it,
//! `IdentityClaims::settle` decides. Of a client that isn't trusted, class, tier and head start aren't even asked for; the rest is
//! passed on as it stands, for the companion to decide.

use std::sync::Arc;

use penstock_wire::{
    Register,
    limits::{JUMP_S_MAX, NAME_BYTES_MAX, STRICT_MAX},
};
use wildmatch::WildMatch;

use crate::{body::Body, headers::Headers, metadata};

/// What the host knows of a stream beside its headers.
pub trait Properties {
    /// The value of a property; none if there is none.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;
}

/// Where a value is read.
#[derive(Clone, Debug)]
pub enum Source {
    /// A request header.
    Header(String),
    /// The body's string with this number in `CompiledPolicy::body_keys`.
    Body(usize),
    /// Dynamic metadata: the filter's name, then keys.
    Metadata(Vec<String>),
    /// By the model; the first glob that matches.
    Model(Arc<[Rule]>),
}

/// One line of a model table.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which models.
    pub glob: WildMatch,
    /// What they get.
    pub value: String,
}

/// The lists of a policy.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Whose share a request takes.
    pub fairness_id: Vec<Source>,
    /// Whose usage it counts to.
    pub user: Vec<Source>,
    /// Its criticality.
    pub priority: Vec<Source>,
    /// Its policy class.
    pub class: Vec<Source>,
    /// Its strict tier.
    pub strict: Vec<Source>,
    /// Seconds it jumps ahead.
    pub jump: Vec<Source>,
}

#[derive(Clone, Debug)]
enum Candidate {
    Known(String),
    Body(usize),
    Model(Arc<[Rule]>),
}

/// What the headers said, and what is left to ask the body.
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
    /// Reads what is there with the headers.
    #[must_use]
    pub fn gather(sources: &Sources, trusted: bool, headers: Headers<'_>, host: &impl Properties) -> Self {
        let list = |sources: &[Source]| gather(sources, headers, host);
        let privilege = |sources: &[Source]| if trusted { list(sources) } else { Vec::new() };
        Self {
            fairness_id: list(&sources.fairness_id),
            user: list(&sources.user),
            priority: list(&sources.priority),
            class: privilege(&sources.class),
            strict: privilege(&sources.strict),
            jump: privilege(&sources.jump),
        }
    }

    /// Decides each, now that the body is known, and writes them into `register`. A strict tier or a head start that
    /// is no whole number, or out of its range, counts as none.
    pub fn settle(&self, body: &Body, register: &mut Register) {
        let (fairness_id, private) = settle(&self.fairness_id, body).unwrap_or_default();
        register.fairness_id = fairness_id;
        register.fairness_id_private = private;
        let text = |list: &[Candidate]| settle(list, body).map(|(value, _)| value);
        register.user = text(&self.user).unwrap_or_default();
        register.priority = text(&self.priority).unwrap_or_default();
        register.class = text(&self.class).unwrap_or_default();
        let number = |list: &[Candidate], most: u32| {
            let value: u32 = text(list)?.parse().ok()?;
            (value <= most).then_some(value)
        };
        register.strict = number(&self.strict, STRICT_MAX);
        register.jump_s = number(&self.jump, JUMP_S_MAX);
    }
}

fn gather(sources: &[Source], headers: Headers<'_>, host: &impl Properties) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for source in sources {
        let known = match source {
            Source::Header(name) => headers.text(name, NAME_BYTES_MAX),
            Source::Metadata(keys) => {
                let path: Vec<&str> = ["metadata", "filter_metadata"]
                    .into_iter()
                    .chain(keys.iter().map(String::as_str))
                    .collect();
                host.property(&path).and_then(|value| metadata::text(&value))
            }
            Source::Body(key) => {
                candidates.push(Candidate::Body(*key));
                None
            }
            Source::Model(rules) => {
                candidates.push(Candidate::Model(Arc::clone(rules)));
                None
            }
        };
        if let Some(known) = known {
            candidates.push(Candidate::Known(known));
            break;
        }
    }
    candidates
}

/// The value, and whether it came out of the body.
fn settle(candidates: &[Candidate], body: &Body) -> Option<(String, bool)> {
    candidates.iter().find_map(|candidate| match candidate {
        Candidate::Known(value) => Some((value.clone(), false)),
        Candidate::Body(key) => Some((body.found.get(*key)?.clone()?, true)),
        Candidate::Model(rules) => {
            let rule = rules.iter().find(|rule| rule.glob.matches(&body.model))?;
            Some((rule.value.clone(), false))
        }
    })
}
