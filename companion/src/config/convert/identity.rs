//! Where a request's identity is read: sources, and what a table by model may say.

use penstock_engine::input::Band;
use penstock_wire::limits::{JUMP_S_MAX, NAME_BYTES_MAX, STRICT_MAX};

use crate::config::{Broken, Identity, Source, raw};

/// Checks `identity`, and fills in what it doesn't say.
pub(super) fn convert(raw: raw::Identity) -> Result<Identity, Broken> {
    let header = |name: &str| raw::Source::Header(name.into());
    let user = || raw::Source::Body("user".into());
    let fairness_id = raw.fairness_id.unwrap_or_else(|| {
        vec![
            header("x-gateway-inference-fairness-id"),
            header("x-llm-d-inference-fairness-id"),
            header("x-penstock-tenant"),
            user(),
        ]
    });
    let users = raw
        .user
        .unwrap_or_else(|| vec![header("x-penstock-user"), user()]);
    let priority = raw.priority.unwrap_or_else(|| {
        vec![
            header("x-penstock-priority"),
            header("x-nexus-priority"),
            header("x-gateway-inference-objective"),
        ]
    });
    let class = raw
        .class
        .unwrap_or_else(|| vec![header("x-penstock-class"), header("x-dynamo-meta-policy-class")]);
    Ok(Identity {
        fairness_id: sources("identity.fairness_id", fairness_id, name)?,
        user: sources("identity.user", users, name)?,
        priority: sources("identity.priority", priority, |value| match value {
            "critical" | "default" | "sheddable" => Ok(()),
            _ => Err("critical, default or sheddable".into()),
        })?,
        class: sources("identity.class", class, name)?,
        strict: sources("identity.strict", raw.strict, |value| at_most(value, STRICT_MAX))?,
        jump: sources("identity.jump", raw.jump, |value| at_most(value, JUMP_S_MAX))?,
        objectives: raw
            .objectives
            .into_iter()
            .map(|(name, band)| (name, band.into()))
            .collect(),
    })
}

/// `allowed` says of a table's value what it should be, if it isn't.
fn sources(
    key: &str,
    raw: Vec<raw::Source>,
    allowed: impl Fn(&str) -> Result<(), String>,
) -> Result<Vec<Source>, Broken> {
    raw.into_iter()
        .enumerate()
        .map(|(at, source)| {
            let named = |text: String| match name(&text) {
                Ok(()) => Ok(text),
                Err(why) => Err(Broken(format!("{key}[{at}]"), format!("this is {why}"))),
            };
            Ok(match source {
                raw::Source::Header(name) => Source::Header(named(name)?.to_ascii_lowercase()),
                raw::Source::Body(name) => Source::Body(named(name)?),
                raw::Source::Metadata(path) => Source::Metadata(named(path)?),
                raw::Source::Model(rules) => {
                    let rules = rules.0.into_iter().map(|(glob, raw::Scalar(value))| {
                        allowed(&value).map_err(|why| {
                            Broken(
                                format!("{key}[{at}].model.{glob}"),
                                format!("`{value}`: this is {why}"),
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

fn name(value: &str) -> Result<(), String> {
    if (1..=NAME_BYTES_MAX).contains(&value.len()) {
        Ok(())
    } else {
        Err(format!("a name of 1 to {NAME_BYTES_MAX} bytes"))
    }
}

fn at_most(value: &str, most: u32) -> Result<(), String> {
    match value.parse::<u32>() {
        Ok(number) if number <= most => Ok(()),
        Ok(_) | Err(_) => Err(format!("a whole number from 0 to {most}")),
    }
}

impl From<raw::Criticality> for Band {
    fn from(raw: raw::Criticality) -> Self {
        match raw {
            raw::Criticality::Critical => Self::Critical,
            raw::Criticality::Default => Self::Default,
            raw::Criticality::Sheddable => Self::Sheddable,
        }
    }
}
