//! The controls of one companion: one for everything, or, if each pool has a leader of its own, one for each pool beside one
//! for what belongs to no pool.
//!
//! A pool's control knows only this pool, and has its own leadership, sessions and requests. So a pool that changes its leader
//! leaves the requests of all other pools alone. The control without pools hands out the policy and counts requests that no
//! pool serves; every companion does that, so it has no leader.
//!
//! A stream belongs to the control without pools until its first frame names a pool.

mod budgets;
mod settings;
mod status;

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_election::{Report, RoleChange};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::control::Control;
use crate::event::{Event, Output};
use crate::ids::{ConnId, Door};
use crate::settings::Settings;

/// The requests that a control decides about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All requests; if each pool has a leader of its own, those that belong to no pool.
    Gateway,
    /// The requests of this pool.
    Pool(Arc<str>),
}

impl Scope {
    /// The pool's name; `None`: the scope isn't one pool.
    #[must_use]
    pub const fn pool(&self) -> Option<&Arc<str>> {
        match self {
            Self::Gateway => None,
            Self::Pool(pool) => Some(pool),
        }
    }
}

/// The reason for closing a stream: its filter asks for a pool that this companion doesn't have.
const NO_POOL: &str = "this companion has no pool of this name";
/// The reason for closing a stream: its filter asks for the leader of a pool, and all pools have the same leader.
const ONE_LEADER: &str = "this companion's pools have one leader, which the main session finds";
/// Why the streams of a removed pool are closed.
const POOL_REMOVED: &str = "the pool was removed";
/// The number of the first control, which has no pool of its own.
const GATEWAY: usize = 0;

/// The controls of one companion. An event touches one of them, and costs the same whatever their number.
#[derive(Debug)]
pub struct Controls {
    /// The first is for the gateway. A removed pool leaves a gap.
    members: Vec<Option<Member>>,
    /// The present members: the gateway's, those of the pools in the order of the configuration, those of removed pools.
    order: Vec<usize>,
    /// The members of all pools with a control of their own.
    by_pool: HashMap<Arc<str>, usize>,
    /// The members of the streams that don't belong to the first one.
    by_stream: HashMap<ConnId, usize>,
    /// Pools have controls of their own. Otherwise the first control is the only one, and the rest is skipped for it.
    is_split: bool,
    /// Deadlines of all members.
    deadlines: BTreeSet<(Instant, usize)>,
    /// Members whose outputs may not all have been taken.
    touched: VecDeque<usize>,
    /// Members with events that [`Controls::next_touched`] hasn't returned.
    changed: VecDeque<usize>,
    /// Streams to close that belong to no control any more.
    closing: VecDeque<(ConnId, &'static str)>,
    is_draining: bool,
    /// The last UTC, and when it was.
    utc: Option<(Instant, Duration)>,
    is_handed_over: bool,
}

#[derive(Debug)]
struct Member {
    scope: Scope,
    control: Control,
    /// In [`Controls::deadlines`].
    deadline: Option<Instant>,
    /// In [`Controls::touched`].
    is_touched: bool,
    /// In [`Controls::changed`].
    is_changed: bool,
    /// The configuration no longer has the pool.
    is_removed: bool,
}

impl Controls {
    /// Controls without sessions.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let is_split = settings.policy.session_per_pool;
        let split = settings::split(settings);
        let mut controls = Self {
            members: Vec::new(),
            order: Vec::new(),
            by_pool: HashMap::new(),
            by_stream: HashMap::new(),
            is_split,
            deadlines: BTreeSet::new(),
            touched: VecDeque::new(),
            changed: VecDeque::new(),
            closing: VecDeque::new(),
            is_draining: false,
            utc: None,
            is_handed_over: false,
        };
        controls.add(Scope::Gateway, Control::new(split.gateway, now));
        for (pool, settings) in split.pools {
            controls.add(Scope::Pool(pool), Control::new(settings, now));
        }
        controls
    }

    /// Handles one event. A [`Event::Leadership`] is the first control's; see [`Controls::change_leadership`].
    pub fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::Frame(conn, mut frame) => self.receive(now, conn, &mut frame),
            Event::Closed(conn) => {
                let member = self.by_stream.remove(&conn).unwrap_or(GATEWAY);
                self.handle_in(now, member, Event::Closed(conn));
                self.drop_if_over(member);
            }
            Event::Settings(settings) => self.reload(now, *settings),
            Event::Utc(utc) => {
                self.utc = Some((now, utc));
                for member in self.order.clone() {
                    self.handle_in(now, member, Event::Utc(utc));
                }
            }
            Event::Serving => {
                for member in self.order.clone() {
                    self.handle_in(now, member, Event::Serving);
                }
            }
            Event::Drain(drains) => {
                self.is_draining = drains;
                for member in self.order.clone() {
                    self.handle_in(now, member, Event::Drain(drains));
                }
            }
            Event::HandOver => {
                self.is_handed_over = true;
                for member in self.order.clone() {
                    self.handle_in(now, member, Event::HandOver);
                }
            }
            // The filters' sessions without a pool are the first control's.
            Event::Opened(..) | Event::Leadership(_) | Event::ModelList(_) => {
                self.handle_in(now, GATEWAY, event);
            }
            Event::Pool(ref pool, _) => {
                let member = self.by_pool.get(pool).copied().unwrap_or(GATEWAY);
                self.handle_in(now, member, event);
            }
        }
    }

    /// Handles a frame of a stream as [`Event::Frame`]. The caller keeps the frame and may use its memory again.
    pub fn receive(&mut self, now: Instant, conn: ConnId, frame: &mut wire::FilterFrame) {
        if !self.is_split {
            let names_pool =
                |message: &Message| matches!(message, Message::Hello(hello) if !hello.pool.is_empty());
            if frame.event.as_ref().is_some_and(names_pool) {
                self.handle_in(now, GATEWAY, Event::Closed(conn));
                return self.closing.push_back((conn, ONE_LEADER));
            }
            return self.update(GATEWAY, |control| control.receive(now, conn, frame));
        }
        let mut member = self.by_stream.get(&conn).copied().unwrap_or(GATEWAY);
        if member == GATEWAY
            && frame.seq == 1
            && let Some(Message::Hello(hello)) = &frame.event
            && !hello.pool.is_empty()
            && !self.is_handed_over
        {
            self.handle_in(now, GATEWAY, Event::Closed(conn));
            let Some(own) = self.by_pool.get(hello.pool.as_str()).copied() else {
                return self.closing.push_back((conn, NO_POOL));
            };
            member = own;
            self.by_stream.insert(conn, member);
            self.handle_in(now, member, Event::Opened(conn, Door::Filter));
        }
        self.update(member, |control| control.receive(now, conn, frame));
    }

    /// The election has decided about the leader of a scope. An unknown scope is ignored.
    pub fn change_leadership(&mut self, now: Instant, scope: &Scope, change: RoleChange) {
        if let Some(member) = self.find(scope) {
            self.handle_in(now, member, Event::Leadership(change));
        }
    }

    /// When [`Controls::handle_timeout`] is due; `None` if time alone changes nothing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_split {
            return self.members[GATEWAY].as_ref()?.control.poll_timeout();
        }
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Does everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_split {
            return self.update(GATEWAY, |control| control.handle_timeout(now));
        }
        let due: Vec<usize> = self
            .deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline <= now)
            .map(|(_, member)| *member)
            .collect();
        for member in due {
            self.update(member, |control| control.handle_timeout(now));
        }
    }

    /// The next output, and the scope of the control that it comes from. Frames come last, so that all commands of an event share
    /// one.
    pub fn poll_output(&mut self) -> Option<(Scope, Output)> {
        while let Some(index) = self.touched.front().copied() {
            if let Some(member) = self.members.get_mut(index).and_then(Option::as_mut) {
                if let Some(output) = member.control.poll_output() {
                    if let Output::Close(conn, _) = &output {
                        self.by_stream.remove(conn);
                    }
                    return Some((member.scope.clone(), output));
                }
                member.is_touched = false;
            }
            self.touched.pop_front();
            self.drop_if_over(index);
        }
        let (conn, why) = self.closing.pop_front()?;
        Some((Scope::Gateway, Output::Close(conn, why)))
    }

    /// Takes back a frame that the control of this scope has output, to use its memory again.
    pub fn recycle(&mut self, scope: &Scope, frame: wire::CompanionFrame) {
        let member = self.find(scope).and_then(|index| self.members.get_mut(index));
        if let Some(member) = member.and_then(Option::as_mut) {
            member.control.recycle(frame);
        }
    }

    /// A control with events since it was last returned here; `None`: there is no other one.
    pub fn next_touched(&mut self) -> Option<Scope> {
        while let Some(index) = self.changed.pop_front() {
            if let Some(member) = self.members.get_mut(index).and_then(Option::as_mut)
                && core::mem::take(&mut member.is_changed)
            {
                return Some(member.scope.clone());
            }
        }
        None
    }

    /// The control of a scope, to read from.
    #[must_use]
    pub fn control(&self, scope: &Scope) -> Option<&Control> {
        Some(&self.members.get(self.find(scope)?)?.as_ref()?.control)
    }

    /// As [`Control::take_known_envoys`], of one scope.
    pub fn take_known_envoys(&mut self, scope: &Scope) -> Option<Report> {
        let index = self.find(scope)?;
        self.members.get_mut(index)?.as_mut()?.control.take_known_envoys()
    }

    /// All controls, the gateway's first, then the pools' in the order in which they were configured.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, &Control)> {
        let members = self.order.iter().filter_map(|index| self.members[*index].as_ref());
        members.map(|member| (&member.scope, &member.control))
    }

    /// The number of controls, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// No request waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.iter().all(|(_, control)| control.is_idle())
    }

    fn find(&self, scope: &Scope) -> Option<usize> {
        match scope {
            Scope::Gateway => Some(GATEWAY),
            Scope::Pool(pool) => self.by_pool.get(pool).copied(),
        }
    }

    fn handle_in(&mut self, now: Instant, member: usize, event: Event) {
        self.update(member, |control| control.handle(now, event));
    }

    fn update(&mut self, index: usize, change: impl FnOnce(&mut Control)) {
        let Some(member) = self.members.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        change(&mut member.control);
        if !core::mem::replace(&mut member.is_touched, true) {
            self.touched.push_back(index);
        }
        if !core::mem::replace(&mut member.is_changed, true) {
            self.changed.push_back(index);
        }
        if !self.is_split {
            return;
        }
        let deadline = member.control.poll_timeout();
        if deadline != member.deadline {
            if let Some(before) = member.deadline {
                self.deadlines.remove(&(before, index));
            }
            self.deadlines.extend(deadline.map(|deadline| (deadline, index)));
            member.deadline = deadline;
        }
    }

    fn add(&mut self, scope: Scope, control: Control) -> usize {
        let free = self.members.iter().position(Option::is_none);
        let index = free.unwrap_or(self.members.len());
        if free.is_none() {
            self.members.push(None);
        }
        if let Scope::Pool(pool) = &scope {
            self.by_pool.insert(pool.clone(), index);
        }
        self.members[index] = Some(Member {
            scope,
            control,
            deadline: None,
            is_touched: false,
            is_changed: false,
            is_removed: false,
        });
        self.order.push(index);
        // Its first deadline.
        self.update(index, |_| {});
        index
    }

    /// Applies other settings. Whether pools have leaders of their own can't change.
    fn reload(&mut self, now: Instant, settings: Settings) {
        let split = settings::split(settings);
        let gateway = split.gateway.clone();
        self.handle_in(now, GATEWAY, Event::Settings(Box::new(split.gateway)));
        let mut configured = vec![GATEWAY];
        for (pool, settings) in split.pools {
            configured.push(match self.by_pool.get(&pool).copied() {
                Some(index) => {
                    self.handle_in(now, index, Event::Settings(Box::new(settings)));
                    index
                }
                None => self.add_later(now, pool, settings),
            });
        }
        let before = core::mem::take(&mut self.order);
        let is_removed = |index: &usize| !configured.contains(index);
        let gone: Vec<usize> = before.into_iter().filter(is_removed).collect();
        for index in &gone {
            let member = self.members[*index].as_ref();
            if let Some(pool) = member.and_then(|member| member.scope.pool().cloned()) {
                let removed = settings::of_removed_pool(&gateway, &pool);
                self.handle_in(now, *index, Event::Settings(Box::new(removed)));
            }
        }
        for (indexes, is_removed) in [(&configured, false), (&gone, true)] {
            for index in indexes {
                if let Some(member) = self.members[*index].as_mut() {
                    member.is_removed = is_removed;
                }
            }
        }
        self.order = [configured, gone].concat();
    }

    fn add_later(&mut self, now: Instant, pool: Arc<str>, settings: Settings) -> usize {
        let index = self.add(Scope::Pool(pool), Control::new(settings, now));
        if let Some((then, utc)) = self.utc {
            self.handle_in(now, index, Event::Utc(utc.saturating_add(now.since(then))));
        }
        if self.is_draining {
            self.handle_in(now, index, Event::Drain(true));
        }
        index
    }

    /// Forgets the control of a removed pool when its last request has ended.
    fn drop_if_over(&mut self, index: usize) {
        let over = |member: &Member| member.is_removed && !member.is_touched && member.control.is_idle();
        let slot = self.members.get_mut(index);
        let Some(member) = slot.and_then(|slot| slot.take_if(|member| over(member))) else {
            return;
        };
        if let Some(pool) = member.scope.pool() {
            self.by_pool.remove(pool);
        }
        if let Some(deadline) = member.deadline {
            self.deadlines.remove(&(deadline, index));
        }
        self.order.retain(|present| *present != index);
        let streams = self.by_stream.extract_if(|_, owner| *owner == index);
        let mut streams: Vec<ConnId> = streams.map(|(conn, _)| conn).collect();
        streams.sort_unstable();
        self.closing.extend(streams.into_iter().map(|conn| (conn, POOL_REMOVED)));
    }
}
