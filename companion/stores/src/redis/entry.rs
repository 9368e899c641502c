//! An entry of a pool's stream: the usage of one companion's flows, and its age when it was written.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::Value;
use ::redis::streams::StreamId;
use penstock_engine::input::{Band, BudgetUsage, PastUsage};

use crate::budget::{Counted, Counter, PeriodCode, time_of};
use crate::budget_buffer;
use crate::write_buffer::UsageKey;

/// Field: the writer's id.
pub(super) const BY: &str = "by";
/// Field: the entry's number among the writer's entries.
pub(super) const NUMBER: &str = "number";
/// Field: the entry's age when it was written, in milliseconds.
pub(super) const AGE: &str = "age_ms";
/// Field: a JSON list of [band, class, flow, model, cost].
pub(super) const USED: &str = "used";
/// Field, if budgets were used or reset: the companion's id.
pub(super) const COMPANION: &str = "companion";
/// Field, if budgets were used: a JSON list of [counter, period, milliseconds since 1970 began by the server's clock, flow, amount].
pub(super) const BUDGETS: &str = "budgets";
/// Field, if budgets were reset before all that: a JSON list of [flow, number of the reset, the companion's own number of it].
pub(super) const RESETS: &str = "resets";
/// Field, if the entry's companion has written its running requests: the id that is in that key.
pub(super) const RUNNING: &str = "running";
/// Bytes of the id of a companion.
const ID_MAX: usize = 64;
/// Bytes of a class, a flow or a model.
const NAME_MAX: usize = 4_096;
/// Members of the list that are read.
const MEMBERS_MAX: usize = 10_000;
/// Writers with remembered numbers.
const WRITERS_MAX: usize = 1_024;

/// Band, class, flow, model and cost.
type Member = (String, Box<str>, Box<str>, Box<str>, u64);

/// A parsed entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) writer_id: String,
    pub(super) number: u64,
    /// When the tokens were used, by the server's clock, in milliseconds.
    pub(super) time: u64,
    pub(super) used: Vec<(UsageKey, u64)>,
    /// The companion that used budgets.
    pub(super) companion: Option<String>,
    pub(super) resets: Vec<Reset>,
    /// What was used of budgets. The times are exact, and no buckets.
    pub(super) budgets: Vec<Counted>,
}

/// A reset of a flow's budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) flow: Box<str>,
    /// Later resets of the flow have higher ones.
    pub(super) number: u64,
    /// That of the companion's engine.
    pub(super) own_number: u64,
}

/// The place of an entry in its stream: the server's milliseconds, and the number among those.
pub(super) type Position = (u64, u64);

/// The position in the id of an entry.
pub(super) fn parse_position(id: &str) -> Option<Position> {
    let (millis, number) = id.split_once('-')?;
    Some((millis.parse().ok()?, number.parse().ok()?))
}

/// A member of [`BUDGETS`].
type BudgetMember = (u8, u64, u64, Box<str>, u64);

/// The list of [`BUDGETS`] as JSON. `taken_at`: the server's time as of which it is, in milliseconds.
pub(super) fn encode_budgets(budgets: &[BudgetUsage], taken_at: u64) -> String {
    let members: Vec<_> = budgets
        .iter()
        .filter_map(|usage| {
            let period = PeriodCode::from(usage.period).number();
            let time = time_of(usage, taken_at)?;
            let counter = Counter::of(usage.unit, usage.kind).number();
            Some((counter, period, time, &*usage.flow, usage.amount))
        })
        .collect();
    serde_json::to_string(&members).unwrap_or_default()
}

fn parse_budgets(text: &str) -> Option<Vec<Counted>> {
    let members: Vec<BudgetMember> = serde_json::from_str(text).ok()?;
    let members = members.into_iter().take(MEMBERS_MAX);
    let counted = members.filter_map(|(counter, period, bucket, flow, amount)| {
        let counted = Counted {
            counter: Counter::from_number(counter)?,
            period: PeriodCode::from_number(period)?,
            bucket,
            flow,
            amount,
        };
        (counted.flow.len() <= NAME_MAX).then_some(counted)
    });
    Some(counted.collect())
}

/// The list of [`RESETS`] as JSON.
pub(super) fn encode_resets<'a>(resets: impl Iterator<Item = (&'a str, u64, u64)>) -> String {
    let members: Vec<_> = resets.collect();
    serde_json::to_string(&members).unwrap_or_default()
}

fn parse_resets(text: &str) -> Option<Vec<Reset>> {
    let members: Vec<(Box<str>, u64, u64)> = serde_json::from_str(text).ok()?;
    let members = members.into_iter().take(MEMBERS_MAX);
    let fitting = members.filter(|(flow, ..)| flow.len() <= NAME_MAX);
    Some(fitting.map(|(flow, number, own_number)| Reset { flow, number, own_number }).collect())
}

/// What a companion runs of flows with budgets, as JSON.
pub(super) fn encode_running_budgets(running: &[budget_buffer::Running]) -> String {
    serde_json::to_string(running).unwrap_or_default()
}

/// The list of [`encode_running_budgets`]; `None`: it is no such list.
pub(super) fn parse_running_budgets(text: &str) -> Option<Vec<budget_buffer::Running>> {
    let mut running: Vec<budget_buffer::Running> = serde_json::from_str(text).ok()?;
    running.truncate(MEMBERS_MAX);
    running.retain(|(flow, ..)| flow.len() <= NAME_MAX);
    Some(running)
}

/// The list of [`USED`] as JSON.
pub(super) fn encode(used: &[(UsageKey, u64)]) -> String {
    let members: Vec<_> = used
        .iter()
        .map(|(key, cost)| (key.band.as_str(), &*key.class, &*key.flow, &*key.model, cost))
        .collect();
    serde_json::to_string(&members).unwrap_or_default()
}

/// The members of a list of [`USED`]; members that no companion writes are left out. `None`: it is no such list.
pub(super) fn parse_list(text: &str) -> Option<Vec<(UsageKey, u64)>> {
    let members: Vec<Member> = serde_json::from_str(text).ok()?;
    let members = members.into_iter().take(MEMBERS_MAX);
    let used = members.filter_map(|(band, class, flow, model, cost)| {
        let band = Band::ALL.into_iter().find(|known| known.as_str() == band)?;
        let fits = [&class, &flow, &model].iter().all(|name| name.len() <= NAME_MAX);
        let key = UsageKey { band, class, flow, model };
        fits.then_some((key, cost))
    });
    Some(used.collect())
}

fn field<'a>(id: &'a StreamId, name: &str) -> Option<&'a str> {
    match id.map.get(name)? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The companion that has written its running requests, and when, by the server's clock in milliseconds.
pub(super) fn writer_of_running(id: &StreamId) -> Option<(&str, u64)> {
    let (millis, _) = id.id.split_once('-')?;
    let companion = field(id, RUNNING).filter(|companion| companion.len() <= ID_MAX)?;
    Some((companion, millis.parse().ok()?))
}

/// `None`: the entry has not the form that companions write.
pub(super) fn parse(id: &StreamId) -> Option<Entry> {
    let (millis, _) = id.id.split_once('-')?;
    let age: u64 = field(id, AGE)?.parse().ok()?;
    let time = millis.parse::<u64>().ok()?.saturating_sub(age);
    let budgets = field(id, BUDGETS).and_then(parse_budgets);
    Some(Entry {
        writer_id: field(id, BY)?.to_owned(),
        number: field(id, NUMBER)?.parse().ok()?,
        time,
        used: parse_list(field(id, USED)?)?,
        companion: field(id, COMPANION).map(str::to_owned),
        resets: field(id, RESETS).and_then(parse_resets).unwrap_or_default(),
        budgets: budgets.unwrap_or_default(),
    })
}

impl Entry {
    /// The usage as records for the engine; `now` is the server's time in milliseconds.
    pub(super) fn past_usage(self, now: u64) -> impl Iterator<Item = PastUsage> {
        let ago = Duration::from_millis(now.saturating_sub(self.time));
        self.used.into_iter().map(move |(key, cost)| key.used(cost, ago))
    }
}

/// The last number of each writer. A batch that was written twice has the same number both times.
#[derive(Clone, Debug, Default)]
pub(super) struct DuplicateFilter(HashMap<String, u64>);

impl DuplicateFilter {
    /// Whether the entry wasn't seen before; remembers it.
    pub(super) fn is_new(&mut self, entry: &Entry) -> bool {
        if self.0.get(&entry.writer_id).is_some_and(|last| *last >= entry.number) {
            return false;
        }
        if self.0.len() >= WRITERS_MAX && !self.0.contains_key(&entry.writer_id) {
            // Most writers are long gone, and a duplicate follows its original at once.
            self.0.clear();
        }
        self.0.insert(entry.writer_id.clone(), entry.number);
        true
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::input::{UsageKind, UsedAt};
    use penstock_engine::policy::{BudgetPeriod, CostUnit};
    use penstock_engine::units::Tokens;

    use super::*;

    fn key(flow: &str) -> UsageKey {
        UsageKey {
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
            map: fields.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect(),
            ..StreamId::default()
        }
    }

    #[test]
    fn an_entry_keeps_the_time_of_its_usage() {
        let used = [(key("é\n"), 3), (key(""), u64::MAX)];
        let encoded = encode(&used);
        let fields = [(BY, "me"), (NUMBER, "7"), (AGE, "1500"), (USED, &*encoded)];
        let entry = parse(&id("10000-3", &fields)).expect("it is one");
        assert_eq!((entry.writer_id.as_str(), entry.number, entry.time), ("me", 7, 8_500));
        assert_eq!(entry.used, used);
        let past: Vec<_> = entry.past_usage(9_000).collect();
        assert_eq!(past[0].ago, Duration::from_millis(500));
        assert_eq!((&*past[0].flow, past[1].cost), ("é\n", Tokens(u64::MAX)));
    }

    #[test]
    fn malformed_entries_are_ignored() {
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
    fn an_entry_names_the_companion_that_has_written_what_it_runs() {
        let whole = [(BY, "me"), (NUMBER, "7"), (AGE, "0"), (USED, "[]")];
        assert_eq!(writer_of_running(&id("9-1", &whole)), None);
        let long = "x".repeat(ID_MAX + 1);
        for (companion, expected) in [("abc", Some(("abc", 9))), (&*long, None)] {
            let entry = id("9-1", &[&whole[..], &[(RUNNING, companion)]].concat());
            assert_eq!(writer_of_running(&entry), expected);
            assert!(parse(&entry).is_some());
        }
    }

    #[test]
    fn an_entry_has_the_resets_and_top_ups_of_its_companion() {
        let whole = [(BY, "me"), (NUMBER, "7"), (AGE, "0"), (USED, "[]")];
        let topped_up = BudgetUsage {
            flow: "a".into(),
            unit: CostUnit::Tokens,
            period: BudgetPeriod::Day,
            kind: UsageKind::ToppedUp,
            used_at: UsedAt::Since(86_400),
            amount: 50,
        };
        let topped_up = std::slice::from_ref(&topped_up);
        let resets = encode_resets([("a\"", 8_700, 3)].into_iter());
        let budgets = encode_budgets(topped_up, 9_000);
        let entry = id("9000-1", &[&whole[..], &[(RESETS, &resets), (BUDGETS, &budgets)]].concat());
        let mut parsed = parse(&entry).expect("it is one");
        assert_eq!(parsed.resets, [Reset { flow: "a\"".into(), number: 8_700, own_number: 3 }]);
        let counted = parsed.budgets.pop().expect("one");
        assert_eq!([counted.exact_usage(9_000)], topped_up);
        // A companion ignores what counts something that it doesn't know.
        let newer = r#"[[9,1,0,"a",5],[0,1,0,"b",6]]"#;
        let entry = id("9-1", &[&whole[..], &[(BUDGETS, newer), (RESETS, "{}")]].concat());
        let parsed = parse(&entry).expect("it is one");
        assert_eq!((parsed.budgets.len(), parsed.resets.len()), (1, 0));
    }

    #[test]
    fn an_entry_written_twice_counts_once() {
        let entry = |writer_id: &str, number| Entry {
            writer_id: writer_id.into(),
            number,
            time: 0,
            used: Vec::new(),
            companion: None,
            resets: Vec::new(),
            budgets: Vec::new(),
        };
        let mut duplicates = DuplicateFilter::default();
        let results: Vec<bool> = [("a", 1), ("a", 2), ("a", 2), ("b", 1), ("a", 1), ("a", 5)]
            .into_iter()
            .map(|(writer_id, number)| duplicates.is_new(&entry(writer_id, number)))
            .collect();
        assert_eq!(results, [true, true, false, true, false, true]);
        for writer in 0..3 * WRITERS_MAX {
            duplicates.is_new(&entry(&writer.to_string(), 1));
            assert!(duplicates.0.len() <= WRITERS_MAX);
        }
    }
}
