//! Leads, stands by, or takes over, as the election decides.
//!
//! A standby establishes no session. It keeps the streams of filters that ask for the leader open, and tells them when there
//! is one. A companion that gets the lease takes over when the filters of the last leader ask here, because then they have
//! left the last leader, and endpoint pickers that outlive that leader do. It grants when all have sent their Hellos.
//!
//! A leader grants until its lease lapses. While the store of leases is unreachable, it goes on for as long as all its filters
//! prove that they follow it: no other companion takes over without one of them.

mod asking;

use hashbrown::{HashMap, HashSet};
use penstock_election::{KnownEnvoy, Pickers, Report, Role, RoleChange, RoleStatus};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;

use super::Control;
use crate::envoys;
use crate::event::Output;
use crate::ids::{ConnId, Epoch, Origin, Route};
use crate::leadership::{
    Asking, FOLLOWED_MAX, HELLOS_WAIT_MAX, Lapse, Lease, PICKER_WAIT, STRANGERS_WAIT, TAKEOVER_WAIT, Takeover,
};
use crate::observation::SessionNews;
use crate::pool::PoolInput;
use crate::session::{Session, Stage};
use crate::timers::Timer;

/// Why a standby closes the streams of the sessions that it had as a leader.
const STANDS_BY: &str = "this companion no longer leads";

impl Control {
    /// The role of this companion. A standby knows where the leader listens for filters.
    #[must_use]
    pub const fn role(&self) -> &RoleStatus {
        &self.leadership.known
    }

    /// Sessions may be established here.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leadership.leads()
    }

    /// The term of this companion, if it leads.
    pub(super) const fn term(&self) -> u64 {
        self.leadership.known.term
    }

    /// The Envoys with sessions here, as [`Report::Known`], if this companion leads, has counted their requests, and they have changed
    /// since the last call.
    pub fn take_known_envoys(&mut self) -> Option<Report> {
        if !self.is_started || self.leadership.known.role != Role::Leader {
            return None;
        }
        if !core::mem::take(&mut self.leadership.has_changed) {
            return None;
        }
        let mut envoys: Vec<KnownEnvoy> = self.envoys.known();
        let mut pickers: Pickers = self.envoys.known_pickers();
        envoys.sort_unstable();
        pickers.own.sort_unstable();
        pickers.earlier.sort_unstable();
        Some(Report::Known { term: self.term(), envoys, pickers })
    }

    pub(super) fn change_leadership(&mut self, now: Instant, change: RoleChange) {
        match change {
            RoleChange::Lead { term, known, pickers, is_last_leader_gone, grants_until } => {
                let takeover = Takeover::new(now, &known, &pickers, is_last_leader_gone);
                self.begin_takeover(now, term, takeover, grants_until);
            }
            RoleChange::Renewed { term, grants_until } => self.renew_lease(now, term, grants_until),
            RoleChange::StoreUnreachable { recorded } => self.note_store_unreachable(now, recorded),
            RoleChange::StandBy { leader, term } => self.stand_by(now, leader, term),
        }
    }

    /// This companion has the lease.
    fn begin_takeover(&mut self, now: Instant, term: u64, takeover: Takeover, grants_until: Instant) {
        if self.leadership.known.is_leader() {
            return;
        }
        let taking_over = RoleStatus { role: Role::TakingOver, term, leader: None };
        let last_leader = core::mem::replace(&mut self.leadership.known, taking_over).leader;
        self.extend_lease(grants_until);
        let is_last_leader_gone = takeover.is_last_leader_gone;
        self.leadership.takeover = Some(Takeover { last_leader, ..takeover });
        // Those that are missing may have gone with the last leader. `startup_wait` may be short where no filters are expected at a start.
        let gone_wait = self.settings.startup_wait.max(wire::limits::STARTUP_WAIT);
        let wait = if is_last_leader_gone { gone_wait } else { TAKEOVER_WAIT };
        self.timers.set(now.after(wait), Timer::Takeover);
        self.lead_if_followed(now);
        if self.leadership.known.role == Role::TakingOver {
            // They stay, although others may be missing for a while.
            self.call_asking();
        }
    }

    /// The lease was renewed.
    fn renew_lease(&mut self, now: Instant, term: u64, grants_until: Instant) {
        if self.leadership.lease.is_none() {
            return;
        }
        let known = &mut self.leadership.known;
        known.term = known.term.max(term);
        let had_lapsed = !self.leadership.may_grant();
        let was_without_store = self.leadership.is_without_store();
        self.extend_lease(grants_until);
        self.check_lease(now);
        if had_lapsed {
            self.resume_grants(now);
        } else if was_without_store && self.leadership.leads() {
            // Filters of new Envoys were told to wait.
            self.call_asking();
        }
    }

    fn resume_grants(&mut self, now: Instant) {
        if !self.leadership.may_grant() || self.leadership.known.role != Role::Leader {
            return;
        }
        if self.is_started {
            for pool in self.pools.ids() {
                self.drive_pool(now, pool, PoolInput::Ready);
            }
        }
        self.call_asking();
    }

    fn extend_lease(&mut self, grants_until: Instant) {
        self.leadership.lease =
            Some(Lease { check_at: grants_until, recorded: None, left_at: None, lapsed: None });
        self.timers.set(grants_until, Timer::Lease);
    }

    /// The store of leases didn't answer. `recorded`: the Envoys that its record names.
    fn note_store_unreachable(&mut self, now: Instant, mut recorded: Vec<KnownEnvoy>) {
        let mut present = self.envoys.known();
        present.sort_unstable();
        recorded.sort_unstable();
        if present != recorded {
            // A filter has come or gone since: the lease ends at its time, because another companion could lead beside this one.
            return;
        }
        let recorded: HashSet<u64> = recorded.iter().map(|known| known.envoy).collect();
        let followed_until = self.followed_until();
        let Some(lease) = &mut self.leadership.lease else {
            return;
        };
        lease.recorded = Some(recorded);
        // The lease may have expired just before this was known.
        if lease.lapsed == Some(Lapse::Expired) && followed_until.is_some_and(|until| until > now) {
            lease.lapsed = None;
            self.check_lease(now);
            self.resume_grants(now);
        }
    }

    /// Stops granting if the lease has lapsed. Called before every event, because a timer may be late.
    pub(super) fn check_lease(&mut self, now: Instant) {
        if self.leadership.lease_check_at().is_none_or(|check_at| now < check_at) {
            return;
        }
        let followed_until = self.followed_until();
        let Some(lease) = &mut self.leadership.lease else {
            return;
        };
        match followed_until {
            Some(until) if lease.recorded.is_some() && until > now => {
                lease.check_at = until;
                self.timers.set(until, Timer::Lease);
            }
            _ if lease.recorded.is_some() => self.lapse(now, Lapse::Unfollowed),
            _ => self.lapse(now, Lapse::Expired),
        }
    }

    /// The time until which all filters here, and those that have left, are known to follow this companion or none; `None`: there are none.
    /// The sessions of endpoint pickers are no proof: a picker asks the companion of its own process first, whoever leads.
    fn followed_until(&self) -> Option<Instant> {
        let of_filters = self.contexts.values().filter(|context| context.origin == Origin::Filter);
        let proofs = of_filters.map(|context| context.followed_at);
        let left_at = self.leadership.lease.as_ref().and_then(|lease| lease.left_at);
        let followed_at = proofs.min().into_iter().chain(left_at).min();
        followed_at.map(|proof| proof.after(FOLLOWED_MAX))
    }

    /// A filter has left. Without the store, that ends the right to grant after a while, as if the filter followed no more: another
    /// companion may lead when filters of that Envoy have asked it for some time.
    pub(super) fn note_filter_left(&mut self, now: Instant) {
        let Some(lease) = &mut self.leadership.lease else {
            return;
        };
        if lease.recorded.is_some() && lease.left_at.is_none() {
            lease.left_at = Some(now);
        }
    }

    /// Stops granting until the lease is renewed.
    fn lapse(&mut self, now: Instant, reason: Lapse) {
        let Some(lease) = &mut self.leadership.lease else {
            return;
        };
        if lease.lapsed.replace(reason).is_some() || self.leadership.known.role != Role::Leader {
            return;
        }
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::Hold);
        }
    }

    /// Another companion leads, or none: gives up all sessions and requests.
    fn stand_by(&mut self, now: Instant, leader: Option<String>, term: u64) {
        if self.leadership.known.role == Role::Alone {
            return;
        }
        let was_leader = self.leadership.known.role == Role::Leader;
        self.leadership.known = RoleStatus { role: Role::Standby, term, leader };
        self.leadership.lease = None;
        self.leadership.takeover = None;
        self.leadership.awaited.clear();
        self.leadership.has_changed = false;
        if was_leader {
            self.is_started = false;
            for pool in self.pools.ids() {
                self.drive_pool(now, pool, PoolInput::Hold);
            }
            self.dismiss_sessions();
            self.forget_requests(now);
        }
        let role = self.role_command();
        for (conn, _, _) in self.asking() {
            self.answer_asking(conn, role.clone());
        }
    }

    /// Sends the filters of all sessions to the leader, and closes their streams.
    fn dismiss_sessions(&mut self) {
        let role = self.role_command();
        let mut conns: Vec<ConnId> = self.sessions.keys().copied().collect();
        conns.sort_unstable();
        for conn in conns {
            if self.established(conn).is_none() {
                self.close_greeting(conn);
                continue;
            }
            let command =
                if role.leader.is_empty() { Kind::Bye(wire::Bye {}) } else { Kind::Role(role.clone()) };
            let Some(mut session) = self.sessions.remove(&conn) else {
                continue;
            };
            session.push(command);
            if let Some(frame) = session.next_frame(self.last_event_at) {
                self.outputs.push_back(Output::Send(conn, Box::new(frame)));
            }
            self.observe_session(conn, SessionNews::Closed(STANDS_BY));
            self.outputs.push_back(Output::Close(conn, STANDS_BY));
        }
    }

    /// Closes a stream in the middle of its Hello: the rest of it would establish a session.
    fn close_greeting(&mut self, conn: ConnId) {
        let is_greeting = |session: &Session| match &session.stage {
            Stage::Greeting(greeting) => greeting.parts > 0,
            Stage::Asking(_) | Stage::Established(_) => false,
        };
        if self.sessions.get(&conn).is_some_and(is_greeting) {
            self.sessions.remove(&conn);
            self.outputs.push_back(Output::Close(conn, STANDS_BY));
        }
    }

    fn established(&self, conn: ConnId) -> Option<Epoch> {
        match self.sessions.get(&conn)?.stage {
            Stage::Established(epoch) => Some(epoch),
            Stage::Greeting(_) | Stage::Asking(_) => None,
        }
    }

    /// Forgets all root contexts and their requests, which are the next leader's. Nothing of it is observed: the requests
    /// haven't ended.
    fn forget_requests(&mut self, now: Instant) {
        self.is_silent = true;
        let mut epochs: Vec<Epoch> = self.contexts.keys().copied().collect();
        epochs.sort_unstable();
        let routes: Vec<Route> = epochs
            .iter()
            .filter_map(|epoch| self.contexts.get(epoch))
            .flat_map(crate::root_context::RootContext::routes)
            .collect();
        // Newest first: a place that a cancelled request frees must not go to a request that is cancelled next.
        for route in routes.into_iter().rev() {
            self.drive_pool(now, route.pool, PoolInput::Forget(route.id));
        }
        for epoch in epochs {
            self.end_credits(now, epoch);
            if let Some(context) = self.contexts.remove(&epoch) {
                self.remove_envoy_context(now, context.envoy, epoch, context.origin);
            }
            self.aliases.retain(epoch, |_, _, _| false);
        }
        self.is_silent = false;
    }

    /// Leads if all filters of the last leader ask here, and all endpoint pickers that outlive it.
    fn lead_if_followed(&mut self, now: Instant) {
        let Some(takeover) = &self.leadership.takeover else {
            return;
        };
        // Most calls end here: one for each filter.
        if self.sessions.len() < takeover.known_contexts {
            return;
        }
        let waited_for = takeover.known.iter().chain(&takeover.pickers);
        let mut missing: HashMap<u64, KnownEnvoy> =
            waited_for.map(|(envoy, known)| (*envoy, *known)).collect();
        for (_, envoy, epoch) in self.asking() {
            if let Some(known) = missing.get_mut(&envoy) {
                known.contexts = known.contexts.wrapping_sub(1);
                known.digest = known.digest.wrapping_sub(envoys::digest(epoch));
            }
        }
        if missing.values().all(|known| known.contexts == 0 && known.digest == 0) {
            self.lead(now);
        }
    }

    /// Decides on a takeover for which filters of the last leader are missing.
    pub(super) fn check_takeover(&mut self, now: Instant) {
        let Some(takeover) = &self.leadership.takeover else {
            return;
        };
        if takeover.is_last_leader_gone {
            return self.lead(now);
        }
        let known = |asking: &Asking| takeover.known.contains_key(&asking.envoy);
        let first_known = self
            .sessions
            .values()
            .filter_map(|session| match &session.stage {
                Stage::Asking(asking) if known(asking) => Some(asking.since),
                _ => None,
            })
            .min();
        let strangers_until = takeover.since.after(STRANGERS_WAIT);
        let picker_until = takeover.since.after(PICKER_WAIT);
        let check_at = match first_known {
            Some(since) if since.after(TAKEOVER_WAIT) <= now => return self.lead(now),
            Some(since) => since.after(TAKEOVER_WAIT),
            // Filters that the last leader didn't know may have found it meanwhile.
            None if self.asking().is_empty() => {
                return self.report(Report::Unfollowed { term: self.term() });
            }
            None if picker_until <= now => return self.lead(now),
            None if !self.is_asked_by_filter() => picker_until,
            None if strangers_until <= now => return self.lead(now),
            None => strangers_until,
        };
        if first_known.is_none() {
            self.send_strangers_to_last_leader();
        }
        self.timers.set(check_at, Timer::Takeover);
    }

    /// The last leader's filters are still with it, so filters that it doesn't know should find it.
    fn send_strangers_to_last_leader(&mut self) {
        let last_leader = self.leadership.takeover.as_ref().and_then(|takeover| takeover.last_leader.clone());
        let Some(leader) = last_leader else {
            return;
        };
        let role = wire::Role { term: self.term().saturating_sub(1), leader, here: false };
        for (conn, _, _) in self.asking() {
            self.answer_asking(conn, role.clone());
        }
    }

    /// This companion leads from now on. It grants when the filters that ask for the leader have sent their Hellos.
    fn lead(&mut self, now: Instant) {
        self.leadership.known.role = Role::Leader;
        self.leadership.takeover = None;
        self.leadership.has_changed = true;
        let called = self.call_asking();
        self.leadership.awaited = called.into_iter().collect();
        self.leadership.awaited_until = now.after(HELLOS_WAIT_MAX);
        self.timers.set(now.after(self.settings.startup_wait), Timer::Startup);
    }

    /// A filter that asked for the leader has sent its Hello.
    pub(super) fn note_hello(&mut self, now: Instant, epoch: Epoch) {
        if self.leadership.awaited.remove(&epoch) && self.leadership.awaited.is_empty() {
            self.announce_deferred();
            self.start(now);
        }
    }

    /// The startup wait is over: dispatch begins, unless Hellos of filters that asked for the leader are on their way.
    pub(super) fn end_startup_wait(&mut self, now: Instant) {
        match self.leadership.known.role {
            Role::Standby | Role::TakingOver => {}
            Role::Leader if now < self.leadership.awaited_until && self.is_hello_on_its_way() => {
                self.timers.set(now.after(self.settings.startup_wait), Timer::Startup);
            }
            Role::Alone | Role::Leader => {
                if !self.leadership.awaited.is_empty() {
                    self.leadership.awaited.clear();
                    self.announce_deferred();
                }
                self.start(now);
            }
        }
    }

    fn is_hello_on_its_way(&self) -> bool {
        let awaited = &self.leadership.awaited;
        !awaited.is_empty()
            && self.sessions.values().any(|session| match &session.stage {
                Stage::Asking(asking) => awaited.contains(&asking.epoch),
                Stage::Greeting(_) => true,
                Stage::Established(_) => false,
            })
    }

    fn report(&mut self, report: Report) {
        self.outputs.push_back(Output::Election(report));
    }
}
