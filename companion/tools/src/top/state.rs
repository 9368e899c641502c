//! The state of the live table: the last document, rates since the one before, and the user's selection.

use std::collections::HashMap;
use std::time::Duration;

use super::tables::Sort;
use super::view::{Flow, Pool, View};

/// Rows that one key press scrolls.
const PAGE: usize = 10;

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    NextPool,
    PreviousPool,
    FlowsDown,
    FlowsUp,
    Sort,
    /// Request /status now.
    Refresh,
    Quit,
    /// The terminal has a new size.
    Redraw,
}

#[derive(Debug, Default)]
pub(super) struct State {
    view: View,
    updated_at: Duration,
    /// Served tokens per second of the selected pool's flows, by flow and band.
    rates: HashMap<(String, String), f64>,
    /// The selected pool's name. The selection follows the name when the list of pools changes.
    selected: Option<String>,
    sort: Sort,
    scrolled: usize,
    /// Why the last update failed.
    error: Option<String>,
}

impl State {
    /// Replaces the document. `time` counts from any fixed start.
    pub(super) fn update(&mut self, time: Duration, view: View) {
        let seconds = time.saturating_sub(self.updated_at).as_secs_f64();
        let before = std::mem::replace(&mut self.view, view);
        self.updated_at = time;
        self.error = None;
        self.rates.clear();
        let Some(pool) = self.pool() else {
            return;
        };
        let Some(before) = before.pools.iter().find(|before| before.name == pool.name) else {
            return;
        };
        let mut served: HashMap<(&str, &str), u64> = HashMap::new();
        for flow in &before.flows {
            *served.entry((&flow.key, &flow.band)).or_default() += flow.served_tokens;
        }
        let rates = pool.flows.iter().filter_map(|flow| {
            let last = served.get(&(&*flow.key, &*flow.band))?;
            // The counter is smaller if the flow was forgotten in between, or tokens were refunded.
            let difference = flow.served_tokens.checked_sub(*last)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate is only displayed")]
            let rate = difference as f64 / seconds;
            (seconds > 0.0).then(|| ((flow.key.clone(), flow.band.clone()), rate))
        });
        self.rates = rates.collect();
    }

    /// Keeps the last document and shows the error.
    pub(super) fn update_failed(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Applies a key's effect on the selection; other commands have none.
    pub(super) fn apply(&mut self, command: Command) {
        match command {
            Command::NextPool => self.select_next(1),
            Command::PreviousPool => self.select_next(self.view.pools.len().saturating_sub(1)),
            Command::FlowsDown => self.scrolled = self.scrolled.saturating_add(PAGE),
            Command::FlowsUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            Command::Sort => {
                self.sort = self.sort.next();
                self.scrolled = 0;
            }
            Command::Refresh | Command::Quit | Command::Redraw => {}
        }
        let flows = self.pool().map_or(0, |pool| pool.flows.len());
        self.scrolled = self.scrolled.min(flows.saturating_sub(1));
    }

    pub(super) const fn view(&self) -> &View {
        &self.view
    }

    /// The selected pool, or the first one.
    pub(super) fn pool(&self) -> Option<&Pool> {
        self.view.pools.get(self.pool_index())
    }

    pub(super) const fn sort(&self) -> Sort {
        self.sort
    }

    /// Number of flows that are scrolled past, if there are this many flows.
    pub(super) fn scrolled(&self, flows: usize) -> usize {
        self.scrolled.min(flows.saturating_sub(1))
    }

    /// Why the last update failed; `None` if it succeeded.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Tokens per second that a flow of the selected pool was served between the last two documents.
    pub(super) fn rate(&self, flow: &Flow) -> Option<f64> {
        self.rates.get(&(flow.key.clone(), flow.band.clone())).copied()
    }

    fn pool_index(&self) -> usize {
        let named = |name: &String| self.view.pools.iter().position(|pool| pool.name == *name);
        self.selected.as_ref().and_then(named).unwrap_or(0)
    }

    fn select_next(&mut self, distance: usize) {
        let count = self.view.pools.len();
        if let Some(next) = (self.pool_index() + distance).checked_rem(count) {
            self.selected = self.view.pools.get(next).map(|pool| pool.name.clone());
            self.rates.clear();
            self.scrolled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::DOCUMENT;
    use super::*;

    fn view(served: u64) -> View {
        let text = DOCUMENT.replace("123456", &served.to_string());
        View::parse(&text).expect("valid")
    }

    #[test]
    fn rate_is_the_difference_between_two_updates() {
        let mut state = State::default();
        state.update(Duration::from_secs(1), view(1_000));
        let rate = |state: &State| state.rate(&state.view().pools[0].flows[0]);
        assert_eq!(rate(&state), None);
        state.update(Duration::from_secs(3), view(1_500));
        assert_eq!(rate(&state), Some(250.0));
        state.update(Duration::from_secs(4), view(10));
        assert_eq!(rate(&state), None, "the flow was forgotten in between");
    }

    #[test]
    fn selection_follows_the_pools_name() {
        let mut state = State::default();
        state.apply(Command::NextPool);
        assert!(state.pool().is_none(), "there are no pools yet");
        state.update(Duration::ZERO, view(1));
        let name = |state: &State| state.pool().map(|pool| pool.name.clone());
        assert_eq!(name(&state).as_deref(), Some("chat"));
        state.apply(Command::NextPool);
        assert_eq!(name(&state).as_deref(), Some("batch"));
        let mut other = view(1);
        other.pools.reverse();
        state.update(Duration::from_secs(1), other);
        assert_eq!(name(&state).as_deref(), Some("batch"));
        state.apply(Command::PreviousPool);
        assert_eq!(name(&state).as_deref(), Some("chat"));
        state.apply(Command::NextPool);
        assert_eq!(name(&state).as_deref(), Some("batch"), "the selection wraps around");
    }

    #[test]
    fn scrolling_stops_at_the_last_flow() {
        let mut state = State::default();
        state.update(Duration::ZERO, view(1));
        state.apply(Command::FlowsDown);
        state.apply(Command::FlowsDown);
        assert_eq!(state.scrolled(3), 2);
        state.apply(Command::FlowsUp);
        assert_eq!(state.scrolled(3), 0);
        state.update_failed("refused".into());
        assert_eq!(state.error(), Some("refused"));
        state.update(Duration::from_secs(1), view(1));
        assert_eq!(state.error(), None);
    }
}
