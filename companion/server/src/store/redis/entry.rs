//! An entry of a pool's stream: what one companion's flows used, and how old that was when it was written.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::Value;
use ::redis::streams::StreamId;
use penstock_data_plane::policy::band_name;
use penstock_engine::input::{Band, PastUsage};

use crate::store::ledger::Who;

/// Fields: who wrote it,
pub(super) const BY: &str = "by";
/// its number among what that one wrote,
pub(super) const NUMBER: &str = "number";
/// its age then, in milliseconds,
pub(super) const AGE: &str = "age_ms";
/// and a list of [band, class, flow, model, cost].
pub(super) const USED: &str = "used";
/// Bytes of a class, a flow or a model.
const NAME_MAX: usize = 4_096;
/// Members of the list.
const MEMBERS_MAX: usize = 10_000;
/// Writers whose numbers are remembered.
const WRITERS_MAX: usize = 1_024;

/// Band, class, flow, model and cost.
type Member = (String, Box<str>, Box<str>, Box<str>, u64);

/// What of an entry counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) by: String,
    pub(super) number: u64,
    /// When it was used, by the server's clock, in milliseconds.
    pub(super) at: u64,
    pub(super) used: Vec<(Who, u64)>,
}

/// The list, as an entry has it.
pub(super) fn text(used: &[(Who, u64)]) -> String {
    let members: Vec<_> = used
        .iter()
        .map(|(who, cost)| (band_name(who.band), &*who.class, &*who.flow, &*who.model, cost))
        .collect();
    serde_json::to_string(&members).unwrap_or_default()
}

/// `None`: no companion wrote that.
pub(super) fn parse(id: &StreamId) -> Option<Entry> {
    let field = |name: &str| match id.map.get(name)? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let (millis, _) = id.id.split_once('-')?;
    let age: u64 = field(AGE)?.parse().ok()?;
    let members: Vec<Member> = serde_json::from_str(field(USED)?).ok()?;
    let used = members.into_iter().take(MEMBERS_MAX);
    let used = used.filter_map(|(band, class, flow, model, cost)| {
        let band = [Band::Critical, Band::Default, Band::Sheddable]
            .into_iter()
            .find(|it| band_name(*it) == band)?;
        let fits = [&class, &flow, &model].iter().all(|it| it.len() <= NAME_MAX);
        let who = Who {
            band,
            class,
            flow,
            model,
        };
        fits.then_some((who, cost))
    });
    Some(Entry {
        by: field(BY)?.to_owned(),
        number: field(NUMBER)?.parse().ok()?,
        at: millis.parse::<u64>().ok()?.saturating_sub(age),
        used: used.collect(),
    })
}

impl Entry {
    /// As an engine is told of it at `now`, by the server's clock, in milliseconds.
    pub(super) fn past(self, now: u64) -> impl Iterator<Item = PastUsage> {
        let ago = Duration::from_millis(now.saturating_sub(self.at));
        self.used.into_iter().map(move |(who, cost)| who.used(cost, ago))
    }
}

/// Which entries were read already, by who wrote them: one that was written twice has the same number.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<String, u64>);

impl Seen {
    /// It wasn't.
    pub(super) fn is_new(&mut self, entry: &Entry) -> bool {
        if self.0.get(&entry.by).is_some_and(|last| *last >= entry.number) {
            return false;
        }
        if self.0.len() >= WRITERS_MAX && !self.0.contains_key(&entry.by) {
            // Most of them are long gone; what is written twice comes at once.
            self.0.clear();
        }
        self.0.insert(entry.by.clone(), entry.number);
        true
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::units::Tokens;

    use super::*;

    fn who(flow: &str) -> Who {
        Who {
            band: Band::Sheddable,
            class: "0.chat".into(),
            flow: flow.into(),
            model: "qwen\"3\\".into(),
        }
    }

    fn id(id: &str, fields: &[(&str, &str)]) -> StreamId {
        let value = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        StreamId {
            id: id.into(),
            map: fields
                .iter()
                .map(|(name, text)| ((*name).to_owned(), value(text)))
                .collect(),
            ..StreamId::default()
        }
    }

    #[test]
    fn what_is_written_is_read_with_the_time_at_which_it_was_used() {
        let used = [(who("é\n"), 3), (who(""), u64::MAX)];
        let text = text(&used);
        let fields = [(BY, "me"), (NUMBER, "7"), (AGE, "1500"), (USED, &*text)];
        let entry = parse(&id("10000-3", &fields)).expect("it is one");
        assert_eq!((entry.by.as_str(), entry.number, entry.at), ("me", 7, 8_500));
        assert_eq!(entry.used, used);
        let past: Vec<_> = entry.past(9_000).collect();
        assert_eq!(past[0].ago, Duration::from_millis(500));
        assert_eq!((&*past[0].flow, past[1].cost), ("é\n", Tokens(u64::MAX)));
    }

    #[test]
    fn what_nobody_wrote_is_ignored() {
        let whole = [(BY, "me"), (NUMBER, "7"), (AGE, "0"), (USED, "[]")];
        assert!(parse(&id("1-1", &whole)).is_some());
        for missing in 0..whole.len() {
            let mut fields = whole.to_vec();
            fields.remove(missing);
            assert_eq!(parse(&id("1-1", &fields)), None);
        }
        for used in ["", "{}", "[1]", r#"[["default","","f","m",-1]]"#] {
            let fields = [whole[0], whole[1], whole[2], (USED, used)];
            assert_eq!(parse(&id("1-1", &fields)), None, "{used}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        let used =
            format!(r#"[["royal","","f","m",1],["default","","{long}","m",1],["default","","f","m",1]]"#);
        let fields = [whole[0], whole[1], whole[2], (USED, &*used)];
        assert_eq!(parse(&id("1-1", &fields)).expect("the last is one").used.len(), 1);
    }

    #[test]
    fn what_was_written_twice_counts_once() {
        let entry = |by: &str, number| Entry {
            by: by.into(),
            number,
            at: 0,
            used: Vec::new(),
        };
        let mut seen = Seen::default();
        let told: Vec<bool> = [("a", 1), ("a", 2), ("a", 2), ("b", 1), ("a", 1), ("a", 5)]
            .into_iter()
            .map(|(by, number)| seen.is_new(&entry(by, number)))
            .collect();
        assert_eq!(told, [true, true, false, true, false, true]);
        for writer in 0..3 * WRITERS_MAX {
            seen.is_new(&entry(&writer.to_string(), 1));
            assert!(seen.0.len() <= WRITERS_MAX);
        }
    }
}
