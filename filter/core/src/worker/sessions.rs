//! The sessions of a worker: one for all requests, or, if the policy says so, one for each pool beside the main session, which then
//! carries what belongs to no pool.
//!
//! Each session finds its own companion. The policy decides which sessions there are, so they change between ticks; streams are
//! opened and reset at the next one. The session of a pool that the policy no longer has stays until its last request has ended.

use std::collections::{BTreeMap, VecDeque};

use penstock_wire::limits::SESSION_GRACE;

use crate::effect::SessionId;
use crate::session::{Epoch, Session, SessionEffect, Settings};
use crate::time::Instant;

/// The sessions of a worker.
#[derive(Debug)]
pub(super) struct Sessions {
    settings: Settings,
    main: Member,
    /// The sessions of pools, in the order in which they began.
    of_pools: Vec<Member>,
    /// The ids of the pools' sessions.
    by_pool: BTreeMap<String, SessionId>,
    last_id: u32,
    /// Effects of sessions that have ended.
    ended: VecDeque<(SessionId, SessionEffect)>,
}

/// A session, and the policy that its companion sent.
#[derive(Debug)]
pub(super) struct Member {
    id: SessionId,
    /// Empty for the main session.
    pool: String,
    pub(super) session: Session,
    /// The digest of the policy that the session's companion sent last, or with which the session began.
    pub(super) policy_digest: String,
    /// The policy no longer has the session.
    is_unneeded: bool,
}

impl Member {
    fn new(id: SessionId, pool: &str, now: Instant, settings: &Settings, policy_digest: &str) -> Self {
        Self {
            id,
            pool: pool.to_owned(),
            session: Session::new(now, settings.clone(), pool),
            policy_digest: policy_digest.to_owned(),
            is_unneeded: false,
        }
    }

    /// Ends of requests may still be reported. A companion that isn't reached for this long has given its requests up.
    fn has_reports(&self, now: Instant) -> bool {
        let down_since = self.session.down_since();
        let is_given_up = down_since.is_some_and(|since| since.after(SESSION_GRACE) <= now);
        self.session.unacknowledged() > 0 && !is_given_up
    }

    /// The only pool whose requests the session carries; empty: those of no other session.
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }
}

impl Sessions {
    /// The main session alone.
    pub(super) fn new(now: Instant, settings: Settings, policy_digest: &str) -> Self {
        Self {
            main: Member::new(SessionId::MAIN, "", now, &settings, policy_digest),
            settings,
            of_pools: Vec::new(),
            by_pool: BTreeMap::new(),
            last_id: 0,
            ended: VecDeque::new(),
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.settings.epoch
    }

    /// The session that carries the requests of a pool; `None`: requests without a pool.
    pub(super) fn id_of(&self, pool: Option<&str>) -> SessionId {
        if self.by_pool.is_empty() {
            return SessionId::MAIN;
        }
        let own = pool.and_then(|pool| self.by_pool.get(pool));
        own.copied().unwrap_or(SessionId::MAIN)
    }

    /// The session that carries the requests of a pool.
    pub(super) fn of(&self, pool: Option<&str>) -> &Session {
        let id = self.id_of(pool);
        let own = self.of_pools.iter().find(|member| member.id == id);
        &own.unwrap_or(&self.main).session
    }

    /// The session that carries the requests of a pool.
    pub(super) fn of_mut(&mut self, pool: Option<&str>) -> &mut Session {
        let id = self.id_of(pool);
        let own = self.of_pools.iter_mut().find(|member| member.id == id);
        &mut own.unwrap_or(&mut self.main).session
    }

    /// A session; `None`: it has ended.
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Member> {
        self.members_mut().find(|member| member.id == id)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        core::iter::once(&self.main).chain(&self.of_pools)
    }

    fn members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        core::iter::once(&mut self.main).chain(&mut self.of_pools)
    }

    pub(super) fn poll_effect(&mut self) -> Option<(SessionId, SessionEffect)> {
        if let Some(effect) = self.ended.pop_front() {
            return Some(effect);
        }
        self.members_mut().find_map(|member| Some((member.id, member.session.poll_effect()?)))
    }

    pub(super) fn is_any_down(&self) -> bool {
        self.members().any(|member| member.session.is_down())
    }

    /// Number of terminal events that companions haven't acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.members().map(|member| member.session.unacknowledged()).sum()
    }

    pub(super) fn next_tick_at(&self, now: Instant) -> Instant {
        let main = self.main.session.next_tick_at(now);
        let others = self.of_pools.iter().map(|member| member.session.next_tick_at(now));
        others.fold(main, Instant::min)
    }

    /// Lets all sessions do what is due. `is_used`: requests of this pool haven't ended.
    /// `alive`: takes the endpoints that have sent bytes. The first session whose heartbeat is due reports them: all end in one companion, or
    /// in companions that check their endpoints by themselves.
    pub(super) fn handle_tick(
        &mut self,
        now: Instant,
        is_used: impl Fn(&str) -> bool,
        mut alive: impl FnMut() -> Vec<String>,
    ) {
        let is_over = |member: &Member| {
            let is_split = !self.by_pool.is_empty();
            member.is_unneeded && !(is_split && (is_used(&member.pool) || member.has_reports(now)))
        };
        let over: Vec<SessionId> =
            self.of_pools.iter().filter(|member| is_over(member)).map(|member| member.id).collect();
        for id in over {
            self.end(id);
        }
        for member in self.members_mut() {
            member.session.handle_tick(now, &mut alive);
        }
    }

    /// Ends the session of a pool.
    fn end(&mut self, id: SessionId) {
        let Some(index) = self.of_pools.iter().position(|member| member.id == id) else {
            return;
        };
        let mut member = self.of_pools.remove(index);
        if self.by_pool.get(&member.pool) == Some(&id) {
            self.by_pool.remove(&member.pool);
        }
        member.session.end();
        while let Some(effect) = member.session.poll_effect() {
            self.ended.push_back((id, effect));
        }
    }

    /// Begins and gives up sessions for these pools; none: the main session carries all requests.
    pub(super) fn configure<'a>(
        &mut self,
        now: Instant,
        pools: impl Iterator<Item = &'a str>,
        policy_digest: &str,
    ) {
        let mut unneeded = Vec::new();
        for member in &mut self.of_pools {
            if core::mem::replace(&mut member.is_unneeded, true) {
                unneeded.push(member.id);
            }
        }
        let mut is_split = false;
        for pool in pools {
            is_split = true;
            let known = self.by_pool.get(pool).copied();
            if let Some(member) = self.of_pools.iter_mut().find(|member| Some(member.id) == known) {
                member.is_unneeded = false;
                if unneeded.contains(&member.id) {
                    // Its entry of the policy was forgotten: the leader sends it again.
                    member.policy_digest.clear();
                    member.session.relist(now);
                }
                continue;
            }
            self.last_id = self.last_id.saturating_add(1);
            let id = SessionId(self.last_id);
            self.of_pools.push(Member::new(id, pool, now, &self.settings, policy_digest));
            self.by_pool.insert(pool.to_owned(), id);
        }
        if !is_split && !self.by_pool.is_empty() {
            self.by_pool.clear();
            // Its next Hello lists the requests of all pools.
            self.main.session.relist(now);
        }
    }

    /// Has each session list its requests anew.
    pub(super) fn relist(&mut self, now: Instant) {
        for member in self.members_mut() {
            member.session.relist(now);
        }
    }

    /// Ends all sessions because the host shuts down.
    pub(super) fn shut_down(&mut self) {
        for member in self.members_mut() {
            member.session.shut_down();
        }
    }
}
