//! A Hello: the stream becomes the session of its root context.

use penstock_engine::Instant;
use penstock_wire as wire;
use prost::Message;
use wire::command::Kind;

use super::Control;
use crate::ids::{ConnId, EnvoyId, Epoch, Origin};
use crate::limits::{CONTEXTS_MAX, NODE_CHARS_MAX};
use crate::observation::SessionNews;
use crate::pool::PoolInput;
use crate::root_context::RootContext;
use crate::session::Stage;

/// The reason for the end of a stream that a later stream of the same root context replaces.
const REPLACED: &str = "a later stream speaks for this filter";
/// The reason for the end of a stream whose Hello was on its way when the store of leases failed.
const UNRECORDED: &str = "its Envoy is new, and the store of leases doesn't answer";

impl Control {
    /// A part of a Hello has arrived. With the last part the session is open.
    pub(super) fn receive_hello(&mut self, now: Instant, conn: ConnId, mut hello: wire::Hello) {
        if hello.picker
            && let Some(session) = self.sessions.get_mut(&conn)
            && session.origin == Origin::Filter
        {
            // The picker of an earlier leader connects where filters do.
            session.origin = Origin::EarlierPicker;
        }
        if hello.part == 0 && self.must_ask(conn, &hello) {
            return self.ask(now, conn, &hello);
        }
        let bytes = hello.encoded_len();
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if let (Stage::Greeting(greeting), 0) = (&mut session.stage, hello.part) {
            greeting.sent_at = Some(self.host_clocks.sent_at(now, hello.clock_us));
        }
        match session.add_hello_part(&mut hello, bytes) {
            Err(violation) => return self.close(now, conn, violation.as_str()),
            Ok(false) => return,
            Ok(true) => {}
        }
        let origin = session.origin;
        if self.leadership.is_unrecorded(origin, hello.envoy) {
            return self.close(now, conn, UNRECORDED);
        }
        let Some(version) = common_version(&hello) else {
            session.push(Kind::HelloAck(wire::HelloAck { version: 0, term: self.leadership.known.term }));
            return self.close(now, conn, "no version of the protocol is common");
        };
        let epoch = Epoch::new(hello.epoch_hi, hello.epoch_lo);
        match self.contexts.get(&epoch) {
            Some(context) if context.stream >= hello.stream => return self.close(now, conn, REPLACED),
            Some(_) => {}
            None if self.contexts.len() >= CONTEXTS_MAX => {
                return self.close(now, conn, "there are more sessions than a companion may have");
            }
            None => {}
        }
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        let greeting = match core::mem::replace(&mut session.stage, Stage::Established(epoch)) {
            Stage::Greeting(greeting) => greeting,
            Stage::Established(_) | Stage::Asking(_) => return,
        };
        self.attach(now, conn, epoch, origin, &hello);
        self.observe_session(
            conn,
            SessionNews::Opened {
                node: hello.node.as_str().into(),
                waiting: greeting.waiting.len(),
                running: greeting.running.len(),
            },
        );
        self.greet(epoch, version, &hello);
        self.resync(now, epoch, *greeting);
        self.note_hello(now, epoch);
        self.start_if_gathered(now);
    }

    /// The filter must not list its requests here, or not yet.
    fn must_ask(&self, conn: ConnId, hello: &wire::Hello) -> bool {
        let origin = self.sessions.get(&conn).map_or(Origin::Filter, |session| session.origin);
        let is_outdated = self.leadership.lease.is_some() && hello.term > self.term();
        hello.probe
            || is_outdated
            || !self.leadership.leads()
            || self.leadership.is_unrecorded(origin, hello.envoy)
    }

    /// Begins dispatch if all expected sessions are open.
    pub(super) fn start_if_gathered(&mut self, now: Instant) {
        let Some(expected) = self.settings.sessions_expected else {
            return;
        };
        // The expected sessions are those of Envoy's workers.
        let of_filters = self.contexts.values().filter(|context| context.origin == Origin::Filter);
        let open = of_filters.filter(|context| context.is_open());
        if open.count() >= expected {
            self.is_gathered = true;
            if self.leadership.awaited.is_empty() {
                self.start(now);
            }
        }
    }

    /// The stream belongs to the root context from now on, and replaces its previous stream.
    fn attach(&mut self, now: Instant, conn: ConnId, epoch: Epoch, of_stream: Origin, hello: &wire::Hello) {
        let envoy = EnvoyId::new(hello.envoy, epoch);
        let is_new = !self.contexts.contains_key(&epoch);
        let context = self.contexts.entry(epoch).or_insert_with(|| RootContext::new(envoy, of_stream));
        if is_new {
            let node: String = hello.node.chars().take(NODE_CHARS_MAX).collect();
            context.node = node.into();
        }
        let (peer_before, origin) = (context.peer(), context.origin);
        context.envoy = envoy;
        context.can_requeue = !hello.no_requeue;
        context.stream = hello.stream;
        context.orphaned_since = None;
        context.followed_at = now;
        context.ended.restart_stream();
        // The new Hello decides which requests are missing.
        context.unconfirmed.clear();
        let peer = context.peer();
        let replaced = context.conn.replace(conn);
        let routes = if peer == peer_before { Vec::new() } else { context.routes() };
        for route in routes {
            let input = PoolInput::PeerChanged { id: route.id, peer };
            self.drive_pool(now, route.pool, input);
        }
        self.leadership.has_changed = true;
        if is_new || envoy != peer_before.envoy {
            self.envoys.add_context(envoy, epoch, origin);
        }
        if !is_new && envoy != peer_before.envoy {
            self.remove_envoy_context(now, peer_before.envoy, epoch, origin);
        }
        if let Some(replaced) = replaced {
            self.close(now, replaced, REPLACED);
        }
    }

    /// An Envoy has one root context less.
    pub(super) fn remove_envoy_context(
        &mut self,
        now: Instant,
        envoy: EnvoyId,
        epoch: Epoch,
        origin: Origin,
    ) {
        self.leadership.has_changed = true;
        if origin == Origin::Filter {
            self.note_filter_left(now);
        }
        if self.envoys.remove_context(envoy, epoch, origin) {
            for pool in self.pools.ids() {
                self.drive_pool(now, pool, PoolInput::EnvoyLeft(envoy));
            }
        }
    }

    /// Sends the commands with which every session begins.
    fn greet(&mut self, epoch: Epoch, version: u32, hello: &wire::Hello) {
        let term = self.term();
        self.send(epoch, Kind::HelloAck(wire::HelloAck { version, term }));
        if hello.policy_digest != self.settings.policy.digest {
            self.send(epoch, Kind::Policy(self.settings.policy.clone()));
        }
        if let Some(list) = &self.model_list {
            self.send(epoch, Kind::ModelList((**list).clone()));
        }
        self.announce_to_newcomer(epoch, hello.endpoints_digest);
    }
}

/// The newest protocol version that both sides have.
fn common_version(hello: &wire::Hello) -> Option<u32> {
    let version = hello.version_max.min(wire::limits::VERSION_MAX);
    (version >= hello.version_min.max(wire::limits::VERSION_MIN)).then_some(version)
}
