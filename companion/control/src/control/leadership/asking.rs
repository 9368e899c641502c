//! The filters that ask for the leader.

use penstock_election::{Report, Role};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;

use super::Control;
use crate::ids::{ConnId, Epoch, Origin};
use crate::leadership::{Asking, Lapse};
use crate::session::{Session, Stage};

impl Control {
    /// A filter asks for the leader.
    pub(in crate::control) fn ask(&mut self, now: Instant, conn: ConnId, hello: &wire::Hello) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        let origin = session.origin;
        session.stage = Stage::Asking(Asking {
            epoch: Epoch::new(hello.epoch_hi, hello.epoch_lo),
            envoy: hello.envoy,
            since: now,
            is_called: false,
        });
        if self.leadership.lease.is_some() && hello.term > self.term() {
            self.report(Report::Superseded { term: hello.term });
            self.lapse(now, Lapse::Superseded);
        }
        let mut role = self.role_command();
        let is_reachable = hello.unreachable_term == 0 || hello.unreachable_term < role.term;
        if !role.leader.is_empty() && !is_reachable {
            // The next leader will call it.
            role = wire::Role::default();
        }
        if self.leadership.is_unrecorded(origin, hello.envoy) {
            // The filter is called when the lease is renewed. Until then it stays, as at a companion that takes over: if it asked
            // another companion for long enough, that one would lead beside this one.
            role = wire::Role { term: self.term(), ..wire::Role::default() };
        }
        if role.leader.is_empty() && self.leadership.known.role == Role::Standby {
            self.report(Report::Wanted);
        }
        self.answer_asking(conn, role);
        self.lead_if_followed(now);
    }

    /// The answer to a filter that asks for the leader.
    pub(super) fn role_command(&self) -> wire::Role {
        let known = &self.leadership.known;
        let term = known.term;
        match (known.role, &known.leader) {
            (Role::Standby, Some(leader)) => wire::Role { term, leader: leader.clone(), here: false },
            (Role::Alone | Role::Leader, _) if self.leadership.leads() => {
                wire::Role { term, leader: String::new(), here: true }
            }
            (Role::TakingOver, _) => wire::Role { term, ..wire::Role::default() },
            (Role::Alone | Role::Leader | Role::Standby, _) => wire::Role::default(),
        }
    }

    pub(super) fn answer_asking(&mut self, conn: ConnId, role: wire::Role) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if let Stage::Asking(asking) = &mut session.stage {
            asking.is_called = role.here;
            if session.push(Kind::Role(role)) {
                self.ready_to_send.push_back(conn);
            }
        }
    }

    /// Sends this companion's role to all filters and endpoint pickers that ask for the leader. Returns their root contexts.
    pub(super) fn call_asking(&mut self) -> Vec<Epoch> {
        let role = self.role_command();
        let mut called = Vec::new();
        for (conn, _, epoch) in self.asking() {
            self.answer_asking(conn, role.clone());
            called.push(epoch);
        }
        called
    }

    /// A filter asks for the leader. Endpoint pickers ask whoever leads, so they tell nothing about the last leader.
    pub(super) fn is_asked_by_filter(&self) -> bool {
        let is_asking = |session: &Session| matches!(session.stage, Stage::Asking(_));
        self.sessions.values().any(|session| session.origin == Origin::Filter && is_asking(session))
    }

    /// The streams, Envoys and root contexts of the filters and endpoint pickers that ask for the leader, in order of the streams.
    pub(super) fn asking(&self) -> Vec<(ConnId, u64, Epoch)> {
        let mut asking: Vec<(ConnId, u64, Epoch)> = self
            .sessions
            .iter()
            .filter_map(|(conn, session)| match &session.stage {
                Stage::Asking(asking) => Some((*conn, asking.envoy, asking.epoch)),
                Stage::Greeting(_) | Stage::Established(_) => None,
            })
            .collect();
        asking.sort_unstable();
        asking
    }
}
