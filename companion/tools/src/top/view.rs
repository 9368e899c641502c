//! The shown part of the /status document. Fields that another version doesn't send have their defaults.

use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct View {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) draining: bool,
    pub(super) config: Option<Config>,
    pub(super) replicas: Option<Replicas>,
    pub(super) sessions: Vec<Session>,
    pub(super) pools: Vec<Pool>,
    pub(super) advice: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) source: String,
    pub(super) digest: String,
    pub(super) failures: u64,
}

/// The role of the companion among several. Where each pool has a leader of its own, the companion's has only `companions`, and each
/// pool's the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Replicas {
    pub(super) role: String,
    pub(super) term: u64,
    pub(super) leader: Option<String>,
    pub(super) companions: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Session {
    pub(super) open: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) saturation: f64,
    pub(super) stock: u64,
    pub(super) draining_stock: u64,
    pub(super) orphaned_stock: u64,
    pub(super) lower: u64,
    pub(super) upper: u64,
    pub(super) waiting: u64,
    pub(super) bands: Vec<Band>,
    pub(super) classes: Vec<Class>,
    pub(super) flows: Vec<Flow>,
    pub(super) budgets: Vec<Budget>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) model: Vec<Model>,
    pub(super) advice: Vec<String>,
    pub(super) replicas: Option<Replicas>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Band {
    pub(super) name: String,
    pub(super) waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Class {
    pub(super) name: String,
    pub(super) quantum: u64,
    pub(super) deficit: u64,
    pub(super) waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flow {
    pub(super) key: String,
    pub(super) band: String,
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
    pub(super) served_tokens: u64,
    pub(super) weight: f64,
}

/// The budget of a flow.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Budget {
    pub(super) flow: String,
    pub(super) over: String,
    pub(super) shadow: bool,
    pub(super) has_room: bool,
    pub(super) windows: Vec<BudgetWindow>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BudgetWindow {
    pub(super) unit: String,
    pub(super) per: String,
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) reserved: u64,
    pub(super) remaining: u64,
    pub(super) resets_at: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) variant: Option<String>,
    pub(super) ready: bool,
    pub(super) why: String,
    pub(super) stock: u64,
    pub(super) bound: u64,
    pub(super) foreign: Option<u64>,
    pub(super) queue: Option<u64>,
    pub(super) kv: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Model {
    pub(super) variant: String,
    pub(super) state: String,
    pub(super) alpha: Option<f64>,
    pub(super) beta: Option<f64>,
    pub(super) gamma: Option<f64>,
    pub(super) n_star: Option<f64>,
    pub(super) lambda_star: Option<f64>,
    pub(super) demand: f64,
    pub(super) current_replicas: u64,
    pub(super) desired_replicas: Option<u64>,
}

impl View {
    /// Parses the document.
    ///
    /// # Errors
    /// The text is not a /status document.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let document: Value = serde_json::from_str(text)?;
        if document.get("pools").is_none() {
            return Err(serde::de::Error::custom("the key `pools` is missing"));
        }
        serde_json::from_value(document)
    }

    /// One line about the companion: version, uptime, role, sessions and configuration.
    pub(super) fn headline(&self) -> String {
        let open = self.sessions.iter().filter(|session| session.open).count();
        let lost = match self.sessions.len() - open {
            0 => String::new(),
            lost => format!(" ({lost} disconnected)"),
        };
        let config = self.config.as_ref().map_or_else(String::new, |config| {
            let failed = if config.failures > 0 {
                format!(", {} failed reloads", config.failures)
            } else {
                String::new()
            };
            let digest: String = config.digest.chars().take(12).collect();
            format!(", {} ({digest}{failed})", config.source)
        });
        let draining = if self.draining { ", DRAINING" } else { "" };
        let led = self.pools.iter().filter_map(|pool| pool.replicas.as_ref());
        let led: Vec<bool> = led.map(Replicas::leads).collect();
        let role = match &self.replicas {
            Some(replicas) if !led.is_empty() => {
                let (leads, pools) = (led.iter().filter(|leads| **leads).count(), led.len());
                let companions = replicas.companions.len();
                format!(", leader of {leads} of {pools} pools among {companions} companions")
            }
            replicas => replicas.as_ref().map_or_else(String::new, Replicas::words),
        };
        format!(
            "penstock {}, up {}{role}, {open} sessions{lost}{config}{draining}",
            self.version,
            uptime(self.uptime_s)
        )
    }
}

impl Replicas {
    pub(super) fn leads(&self) -> bool {
        self.role == "leader"
    }

    /// The role for the headline.
    fn words(&self) -> String {
        let (companions, term) = (self.companions.len(), self.term);
        match (&*self.role, &self.leader) {
            ("leader", _) => format!(", leader of {companions} companions (term {term})"),
            (_, Some(leader)) => format!(", STANDBY of {leader} (term {term})"),
            (_, None) => ", STANDBY, no companion leads".into(),
        }
    }
}

/// A duration in its two largest units: `3d 4h`, `5m 6s`.
fn uptime(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units {
        if rest >= size || (size == 1 && parts.is_empty()) {
            parts.push(format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    parts.truncate(2);
    parts.join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A document with every kind of content.
    pub(crate) const DOCUMENT: &str = include_str!("sample.json");

    #[test]
    fn whole_document_is_parsed() {
        let view = View::parse(DOCUMENT).expect("valid");
        let pool = &view.pools[0];
        assert_eq!((pool.waiting, pool.flows.len(), pool.endpoints.len()), (12, 3, 3));
        assert_eq!(
            view.headline(),
            "penstock 0.1.0, up 1h 2m, 2 sessions (1 disconnected), penstock.yaml (0123456789ab, 1 failed reloads)"
        );
    }

    #[test]
    fn headline_has_the_role_among_several_companions() {
        for (replicas, expected) in [
            (
                r#"{"role": "leader", "term": 7, "leader": "127.0.0.1:1", "companions": ["127.0.0.1:1", "127.0.0.1:2"]}"#,
                "penstock , up 0s, leader of 2 companions (term 7), 0 sessions",
            ),
            (
                r#"{"role": "standby", "term": 7, "leader": "127.0.0.1:2", "companions": ["127.0.0.1:1", "127.0.0.1:2"]}"#,
                "penstock , up 0s, STANDBY of 127.0.0.1:2 (term 7), 0 sessions",
            ),
            (
                r#"{"role": "standby", "term": 0, "leader": null, "companions": ["127.0.0.1:1"]}"#,
                "penstock , up 0s, STANDBY, no companion leads, 0 sessions",
            ),
        ] {
            let view = View::parse(&format!(r#"{{"pools": [], "replicas": {replicas}}}"#)).expect("valid");
            assert_eq!(view.headline(), expected);
        }
    }

    #[test]
    fn headline_counts_the_pools_that_are_led_here() {
        let view = View::parse(
            r#"{"replicas": {"per": "pool", "companions": ["a", "b"]}, "pools": [
                {"name": "chat", "replicas": {"role": "leader", "term": 7, "leader": "a"}},
                {"name": "code", "replicas": {"role": "standby", "term": 7, "leader": "b"}}]}"#,
        );
        assert_eq!(
            view.expect("valid").headline(),
            "penstock , up 0s, leader of 1 of 2 pools among 2 companions, 0 sessions"
        );
    }

    #[test]
    fn missing_fields_have_defaults_and_unknown_fields_are_ignored() {
        let view = View::parse(r#"{"pools": [{"name": "a"}], "later": 1}"#).expect("valid");
        assert_eq!((view.pools[0].waiting, view.pools[0].advice.len()), (0, 0));
        for other in ["[]", "{}", "1", "<html>"] {
            assert!(View::parse(other).is_err(), "{other}");
        }
    }

    #[test]
    fn uptime_has_its_two_largest_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (3_725, "1h 2m"), (90_061, "1d 1h")] {
            assert_eq!(uptime(seconds), text);
        }
    }
}
