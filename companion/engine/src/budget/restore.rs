//! Usage from before this engine started, or that others settled long ago: it is replayed in the order of time, so that what exceeded a
//! window is owed as if it had been used here.

use alloc::vec::Vec;

use super::moment::kept;
use super::window::{StepNumber, Window};
use super::{LocalNow, Now, Table};
use crate::input::{BudgetUsage, UsageKind, UsedAt};
use crate::policy::BudgetWindow;

impl Table {
    /// Replays what a flow has used before everything that it has used here. `index` is its budget.
    pub(crate) fn replay(&mut self, name: &str, index: usize, past: &[BudgetUsage], now: &Now<'_>) {
        let Some((flow, budget)) = self.entry_with_budget(name, index, now) else {
            return;
        };
        let now = now.under(flow.budget);
        for (window, definition) in flow.windows.iter_mut().zip(&budget.windows) {
            let mut whole = replayed(definition, past, &now);
            whole.add_later(window);
            *window = whole;
        }
    }
}

/// Counts what was used, or added, in `step`.
pub(super) fn count(window: &mut Window, step: StepNumber, usage: &BudgetUsage) {
    match usage.kind {
        UsageKind::Used => window.add_used(step, usage.amount),
        UsageKind::ToppedUp => window.top_up(step, usage.amount),
    }
}

fn of_window<'a>(
    definition: &BudgetWindow,
    past: &'a [BudgetUsage],
) -> impl Iterator<Item = &'a BudgetUsage> + Clone {
    let (unit, period) = (definition.unit, definition.period);
    past.iter().filter(move |usage| (usage.unit, usage.period) == (unit, period))
}

/// A window in which only these usages count, at the present moment.
fn replayed(definition: &BudgetWindow, usages: &[BudgetUsage], now: &LocalNow<'_>) -> Window {
    let same = of_window(definition, usages);
    let mut steps: Vec<(StepNumber, &BudgetUsage)> =
        same.clone().filter_map(|usage| Some((now.step_of(usage)?, usage))).collect();
    // The order within a step isn't known: what was used comes first.
    steps.sort_unstable_by_key(|(step, usage)| (*step, usage.kind));
    let present = now.moment.step(definition.period);
    let first = steps.first().map_or(present, |(step, _)| (*step).min(present));
    let mut window = Window::new(definition.limit, kept(definition.period), first);
    for (step, usage) in steps {
        window.advance(step.min(present));
        count(&mut window, step, usage);
    }
    window.advance(present);
    for usage in same.filter(|usage| usage.used_at == UsedAt::Debt) {
        window.add_debt(usage.amount);
    }
    window
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::budget::calendar::Calendars;
    use crate::policy::{BudgetPeriod, CostUnit};
    use crate::rng::Rng;
    use crate::time::Instant;

    const WINDOW: BudgetWindow = BudgetWindow {
        unit: CostUnit::Tokens,
        limit: 100,
        period: BudgetPeriod::Sliding(Duration::from_secs(10)),
    };

    fn second(second: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(1_000_000 + second))
    }

    fn used_ago(seconds: u64, amount: u64) -> BudgetUsage {
        BudgetUsage {
            flow: "a".into(),
            unit: WINDOW.unit,
            period: WINDOW.period,
            kind: UsageKind::Used,
            used_at: UsedAt::Ago(Duration::from_secs(seconds)),
            amount,
        }
    }

    fn topped_up_ago(seconds: u64, amount: u64) -> BudgetUsage {
        BudgetUsage { kind: UsageKind::ToppedUp, ..used_ago(seconds, amount) }
    }

    #[test]
    fn a_replayed_window_equals_the_one_that_was_there() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let calendars = Calendars::of_utc(second(0));
            let now_at = |number| Now::new(second(number), &calendars).under(0);
            let step = |number| now_at(number).moment.step(WINDOW.period);
            let mut lived = Window::new(WINDOW.limit, kept(WINDOW.period), step(0));
            let end = 40 + rng.next() % 200;
            let mut usages = Vec::new();
            for _ in 0..(rng.next() % 12) {
                let (when, amount) = (rng.next() % end, 1 + rng.next() % 400);
                let kind = if rng.next().is_multiple_of(4) { UsageKind::ToppedUp } else { UsageKind::Used };
                usages.push((when, kind, amount));
            }
            usages.sort_unstable();
            for &(when, kind, amount) in &usages {
                lived.advance(step(when));
                match kind {
                    UsageKind::Used => lived.add_used(step(when), amount),
                    UsageKind::ToppedUp => lived.top_up(step(when), amount),
                }
            }
            lived.advance(step(end));
            let now = now_at(end);
            // The order in which a store returns them doesn't matter.
            usages.reverse();
            let usages: Vec<BudgetUsage> = usages
                .iter()
                .map(|&(when, kind, amount)| match kind {
                    UsageKind::Used => used_ago(end - when, amount),
                    UsageKind::ToppedUp => topped_up_ago(end - when, amount),
                })
                .collect();
            let mut replayed = replayed(&WINDOW, &usages, &now);
            // Nothing is left of a top-up by nothing, but its end.
            lived.top_up(step(end), 0);
            replayed.top_up(step(end), 0);
            assert_eq!(replayed, lived, "seed {seed}: {usages:?}");
        }
    }

    #[test]
    fn a_restored_top_up_pays_the_debt_of_its_time_and_ends_when_it_would_have_ended() {
        let calendars = Calendars::of_utc(second(0));
        let moment = |now| Now::new(second(now), &calendars).under(0);
        let past = |now: u64| [used_ago(now - 10, 130), topped_up_ago(now - 12, 50)];
        let window = replayed(&WINDOW, &past(14), &moment(14));
        assert_eq!((window.used(), window.debt(), window.room()), (130, 0, 20));
        let window = replayed(&WINDOW, &past(21), &moment(21));
        assert_eq!((window.used(), window.room()), (30, 120));
        let window = replayed(&WINDOW, &past(23), &moment(23));
        assert_eq!((window.used(), window.room()), (0, 100));
    }

    #[test]
    fn other_windows_and_units_are_left_out() {
        let calendars = Calendars::of_utc(second(0));
        let now = Now::new(second(50), &calendars).under(0);
        let other_unit = BudgetUsage { unit: CostUnit::Requests, ..used_ago(1, 5) };
        let other_window =
            BudgetUsage { period: BudgetPeriod::Sliding(Duration::from_secs(60)), ..used_ago(1, 6) };
        let debt = BudgetUsage { used_at: UsedAt::Debt, ..used_ago(0, 30) };
        let window = replayed(&WINDOW, &[other_unit, used_ago(1, 7), debt, other_window], &now);
        assert_eq!((window.used(), window.room()), (37, 63));
    }
}
