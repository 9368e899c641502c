//! What the live table knows between two pictures: the last look, the one before it, and what its user has chosen.

use std::collections::HashMap;
use std::time::Duration;

use super::tables::Sort;
use super::view::{Flow, Pool, View};

/// Flows that a page up or down goes by.
const PAGE: usize = 10;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    NextPool,
    PreviousPool,
    FlowsDown,
    FlowsUp,
    Sort,
    /// Another look, now.
    Look,
    Quit,
    /// The terminal has another size.
    Redraw,
}

#[derive(Debug, Default)]
pub(super) struct State {
    view: View,
    at: Duration,
    /// Of the chosen pool, by flow and band.
    rates: HashMap<(String, String), f64>,
    /// By name, so that it stays chosen when others come and go.
    chosen: Option<String>,
    sort: Sort,
    scrolled: usize,
    away: Option<String>,
}

impl State {
    /// A look at this time, however that is counted.
    pub(super) fn saw(&mut self, at: Duration, view: View) {
        let seconds = at.saturating_sub(self.at).as_secs_f64();
        let before = std::mem::replace(&mut self.view, view);
        self.at = at;
        self.away = None;
        self.rates.clear();
        let Some(pool) = self.pool() else {
            return;
        };
        let Some(before) = before.pools.iter().find(|it| it.name == pool.name) else {
            return;
        };
        let mut served: HashMap<(&str, &str), u64> = HashMap::new();
        for flow in &before.flows {
            *served.entry((&flow.key, &flow.band)).or_default() += flow.served_tokens;
        }
        let rates = pool.flows.iter().filter_map(|flow| {
            let last = served.get(&(&*flow.key, &*flow.band))?;
            // Less than before: it was forgotten meanwhile, or refunded.
            let more = flow.served_tokens.checked_sub(*last)?;
            #[expect(clippy::cast_precision_loss, reason = "a rate is for people")]
            let rate = more as f64 / seconds;
            (seconds > 0.0).then(|| ((flow.key.clone(), flow.band.clone()), rate))
        });
        self.rates = rates.collect();
    }

    /// Nobody answered.
    pub(super) fn missed(&mut self, why: String) {
        self.away = Some(why);
    }

    /// Does what a key asks for, as far as that is for the state to do.
    pub(super) fn wish(&mut self, wish: Wish) {
        match wish {
            Wish::NextPool => self.choose(1),
            Wish::PreviousPool => self.choose(self.view.pools.len().saturating_sub(1)),
            Wish::FlowsDown => self.scrolled = self.scrolled.saturating_add(PAGE),
            Wish::FlowsUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            Wish::Sort => {
                self.sort = self.sort.next();
                self.scrolled = 0;
            }
            Wish::Look | Wish::Quit | Wish::Redraw => {}
        }
        let flows = self.pool().map_or(0, |it| it.flows.len());
        self.scrolled = self.scrolled.min(flows.saturating_sub(1));
    }

    pub(super) const fn view(&self) -> &View {
        &self.view
    }

    /// The chosen pool, or the first.
    pub(super) fn pool(&self) -> Option<&Pool> {
        self.view.pools.get(self.at())
    }

    pub(super) const fn sort(&self) -> Sort {
        self.sort
    }

    /// How many of so many flows are above what is shown.
    pub(super) fn scrolled(&self, flows: usize) -> usize {
        self.scrolled.min(flows.saturating_sub(1))
    }

    /// Why nobody answered, if the last look failed.
    pub(super) fn away(&self) -> Option<&str> {
        self.away.as_deref()
    }

    /// Tokens a second that a flow of the chosen pool was served between the last two looks.
    pub(super) fn rate(&self, of: &Flow) -> Option<f64> {
        self.rates.get(&(of.key.clone(), of.band.clone())).copied()
    }

    fn at(&self) -> usize {
        let named = |name: &String| self.view.pools.iter().position(|it| it.name == *name);
        self.chosen.as_ref().and_then(named).unwrap_or(0)
    }

    fn choose(&mut self, by: usize) {
        let all = self.view.pools.len();
        if let Some(next) = (self.at() + by).checked_rem(all) {
            self.chosen = self.view.pools.get(next).map(|it| it.name.clone());
            self.rates.clear();
            self.scrolled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::DOCUMENT;
    use super::*;

    fn look(served: u64) -> View {
        let text = DOCUMENT.replace("123456", &served.to_string());
        View::read(&text).expect("valid")
    }

    #[test]
    fn rates_are_between_two_looks() {
        let mut state = State::default();
        state.saw(Duration::from_secs(1), look(1_000));
        let rate = |state: &State| state.rate(&state.view().pools[0].flows[0]);
        assert_eq!(rate(&state), None);
        state.saw(Duration::from_secs(3), look(1_500));
        assert_eq!(rate(&state), Some(250.0));
        state.saw(Duration::from_secs(4), look(10));
        assert_eq!(rate(&state), None, "it was forgotten meanwhile");
    }

    #[test]
    fn a_pool_stays_chosen_by_its_name() {
        let mut state = State::default();
        state.wish(Wish::NextPool);
        assert!(state.pool().is_none(), "there is none yet");
        state.saw(Duration::ZERO, look(1));
        let name = |state: &State| state.pool().map(|it| it.name.clone());
        assert_eq!(name(&state).as_deref(), Some("chat"));
        state.wish(Wish::NextPool);
        assert_eq!(name(&state).as_deref(), Some("batch"));
        let mut other = look(1);
        other.pools.reverse();
        state.saw(Duration::from_secs(1), other);
        assert_eq!(name(&state).as_deref(), Some("batch"));
        state.wish(Wish::PreviousPool);
        assert_eq!(name(&state).as_deref(), Some("chat"));
        state.wish(Wish::NextPool);
        assert_eq!(name(&state).as_deref(), Some("batch"), "it goes round");
    }

    #[test]
    fn nobody_scrolls_past_the_end() {
        let mut state = State::default();
        state.saw(Duration::ZERO, look(1));
        state.wish(Wish::FlowsDown);
        state.wish(Wish::FlowsDown);
        assert_eq!(state.scrolled(3), 2);
        state.wish(Wish::FlowsUp);
        assert_eq!(state.scrolled(3), 0);
        state.missed("gone".into());
        assert_eq!(state.away(), Some("gone"));
        state.saw(Duration::from_secs(1), look(1));
        assert_eq!(state.away(), None);
    }
}
