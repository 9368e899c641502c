//! What flows use in the windows of their budgets.
//!
//! [`window`] counts one window of one flow, [`moment`] numbers the steps of windows, [`calendar`] knows days, [`flow`] has all windows
//! of a flow, and [`table`] all flows. [`crate::engine`] asks at a request's arrival and at its turn, and charges at its dispatch.

mod audit;
mod calendar;
mod flow;
mod moment;
mod report;
mod resets;
mod restore;
mod snapshot;
mod table;
mod window;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::time::Duration;

use self::calendar::Calendars;
pub(crate) use self::moment::{LocalNow, Now};
pub(crate) use self::table::Table;
use crate::policy::{Budget, Flows};
use crate::time::Instant;

/// The budgets of a pool, and their calendars.
#[derive(Debug)]
pub(crate) struct Budgets {
    calendars: Calendars,
    now: Instant,
    /// `None`: the policy has no budgets.
    table: Option<Box<Table>>,
}

impl Budgets {
    pub(crate) fn new(flows: &Flows, now: Instant) -> Self {
        let mut new = Self { calendars: Calendars::new(now), now, table: None };
        new.reconfigure(&[], flows);
        new
    }

    /// The usage of all flows; `None`: the policy has no budgets. All that a request without budgets pays is this check.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        self.table.is_some()
    }

    /// The usage of all flows, and the present moment.
    pub(crate) fn table(&mut self) -> Option<(&mut Table, Now<'_>)> {
        let now = Now::new(self.now, &self.calendars);
        Some((self.table.as_mut()?, now))
    }

    pub(crate) fn read(&self) -> Option<(&Table, Now<'_>)> {
        let now = Now::new(self.now, &self.calendars);
        Some((self.table.as_ref()?, now))
    }

    /// Calls `read` with the usage of all flows and a moment that isn't before the last input; `None`: the policy has no budgets.
    pub(crate) fn read_at<T>(&self, now: Instant, read: impl FnOnce(&Table, &Now<'_>) -> T) -> Option<T> {
        let mut calendars = Cow::Borrowed(&self.calendars);
        if calendars.are_due(now) {
            calendars.to_mut().advance(now);
        }
        Some(read(self.table.as_ref()?, &Now::new(now, &calendars)))
    }

    #[inline]
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = now;
        if self.is_on() {
            self.calendars.advance(now);
        }
    }

    /// See [`crate::Input::Utc`].
    pub(crate) fn set_utc(&mut self, now: Instant, utc: Duration) {
        self.now = now;
        self.calendars.set(now, utc);
    }

    /// The next moment at which a flow that is held may go.
    #[inline]
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.table.as_ref()?.next_wake()
    }

    /// Applies other budgets. Windows stay with what was used of them if their glob, unit and period stay.
    pub(crate) fn reconfigure(&mut self, old: &[Budget], new: &Flows) {
        self.calendars.advance(self.now);
        let calendars = self.calendars.of_policy(&new.budgets, self.now);
        let before = core::mem::replace(&mut self.calendars, calendars);
        if new.budgets.is_empty() {
            self.table = None;
            return;
        }
        let (before, now) = (Now::new(self.now, &before), Now::new(self.now, &self.calendars));
        self.table.get_or_insert_default().reconfigure(old, new, &before, &now);
    }
}
