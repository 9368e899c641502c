//! The frames of one stream: numbers and acknowledgements, and the message in each frame.

use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use super::Control;
use crate::completion::Completion;
use crate::event::Output;
use crate::ids::{ConnId, Epoch, RequestKey};
use crate::observation::Observation;
use crate::pool::PoolInput;
use crate::registration::Arrival;
use crate::session::{Stage, Violation};
use crate::wire_in;

impl Control {
    /// A frame has arrived. The frame is large, so its message is handled where it is.
    pub(super) fn receive_frame(&mut self, now: Instant, conn: ConnId, frame: &mut wire::FilterFrame) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if let Err(violation) = session.receive(now, frame.seq, frame.ack) {
            return self.close(now, conn, violation.as_str());
        }
        if frame.event.is_none() && frame.admitted.is_empty() {
            return self.close(now, conn, Violation::Empty.as_str());
        }
        match (&session.stage, &mut frame.event) {
            (Stage::Greeting(_), Some(Message::Hello(hello))) => {
                self.receive_hello(now, conn, core::mem::take(hello));
            }
            (Stage::Asking(asking), Some(Message::Hello(hello)))
                if asking.is_called && hello.part == 0 && !hello.probe =>
            {
                session.stage = Stage::Greeting(Box::default());
                self.receive_hello(now, conn, core::mem::take(hello));
            }
            (Stage::Asking(_), Some(Message::Heartbeat(_))) => {
                if session.acknowledge() {
                    self.ready_to_send.push_back(conn);
                }
            }
            // Its next Hello lists what has changed.
            (Stage::Asking(_), _) => {}
            (Stage::Greeting(_), _) => self.close(now, conn, Violation::NoHello.as_str()),
            (Stage::Established(_), Some(Message::Hello(_))) => {
                self.close(now, conn, Violation::Parts.as_str());
            }
            (Stage::Established(epoch), message) => {
                let epoch = *epoch;
                if let Some(context) = self.contexts.get_mut(&epoch) {
                    context.ended.acknowledge(frame.ack);
                    context.followed_at = context.followed_at.max(session.proved_at());
                }
                for admitted in &frame.admitted {
                    self.admitted(now, epoch, admitted);
                }
                let is_heartbeat = matches!(message, Some(Message::Heartbeat(_)));
                if let Some(message) = message {
                    self.receive_message(now, conn, epoch, message);
                }
                self.acknowledge_if_due(conn, is_heartbeat);
            }
        }
    }

    fn receive_message(&mut self, now: Instant, conn: ConnId, epoch: Epoch, message: &Message) {
        let key = |sequence| RequestKey { epoch, sequence };
        match message {
            Message::Hello(_) => {}
            Message::Register(register) => {
                // No attempt has failed where a request waited under its key before.
                let arrival = if register.moved { Arrival::Waiting } else { Arrival::New };
                self.register(now, wire_in::registration(epoch, register), arrival);
            }
            Message::Cancel(cancel) => self.cancel(now, key(cancel.sequence)),
            Message::Started(started) => self.started(now, key(started.sequence), started),
            Message::AttemptFailed(failed) => self.attempt_failed(now, key(failed.sequence), failed),
            Message::Completed(completed) => {
                self.completed(now, key(completed.sequence), &wire_in::completion(completed));
            }
            Message::Refused(refused) => self.refused(now, key(refused.sequence), refused),
            Message::Heartbeat(heartbeat) => {
                if !heartbeat.alive.is_empty() {
                    let alive = heartbeat.alive.iter().map(|address| address.as_str().into()).collect();
                    self.outputs.push_back(Output::Observe(Observation::Alive(alive)));
                }
                self.release_unconfirmed(now, epoch);
            }
            Message::CreditReturned(returned) => self.credit_returned(now, epoch, returned),
            Message::Bye(_) => {
                self.release(now, epoch);
                self.close(now, conn, "bye");
            }
        }
    }

    fn acknowledge_if_due(&mut self, conn: ConnId, is_heartbeat: bool) {
        if let Some(session) = self.sessions.get_mut(&conn)
            && (is_heartbeat || session.owes_acknowledgement())
            && session.acknowledge()
        {
            self.ready_to_send.push_back(conn);
        }
    }

    /// The client of a request has left.
    pub(super) fn cancel(&mut self, now: Instant, key: RequestKey) {
        self.aliases.remove(key);
        if let Some(route) = self.find(key) {
            self.drive_pool(now, route.pool, PoolInput::Cancel(route.id));
        }
    }

    fn started(&mut self, now: Instant, key: RequestKey, started: &wire::Started) {
        if let Some(route) = self.find(key) {
            let input = PoolInput::Started {
                id: route.id,
                endpoint: wire_in::non_empty(&started.endpoint),
                status: u16::try_from(started.status).unwrap_or(0),
                attempts: wire_in::attempts(started.attempts),
                has_first_token: started.first_token,
            };
            self.drive_pool(now, route.pool, input);
        }
    }

    /// An attempt failed. The request may run under another key by now, or have ended.
    fn attempt_failed(&mut self, now: Instant, key: RequestKey, message: &wire::AttemptFailed) {
        let Some(attempt) = wire_in::failed_attempt(message) else {
            return;
        };
        let route = self.find(key);
        let pool = route.map(|route| route.pool);
        if let Some(pool) = pool.or_else(|| self.pools.by_name(&message.pool)) {
            let id = route.map(|route| route.id);
            self.drive_pool(now, pool, PoolInput::AttemptFailed { id, attempt });
        }
    }

    pub(super) fn completed(&mut self, now: Instant, key: RequestKey, completion: &Completion<'_>) {
        self.aliases.remove(key);
        if let Some(route) = self.find(key) {
            let id = route.id;
            self.drive_pool(now, route.pool, PoolInput::Completed { id, completion });
        }
    }

    /// Queues a command for the stream of a root context. Without a stream the command is lost, and the next Hello repairs
    /// that.
    pub(super) fn send(&mut self, epoch: Epoch, command: Kind) {
        let Some(conn) = self.contexts.get(&epoch).and_then(|context| context.conn) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if session.is_outbox_empty() {
            session.reuse(self.spent_frames.take_list());
        }
        if session.push(command) {
            self.ready_to_send.push_back(conn);
        }
    }

    /// Closes a stream. Its queued commands are sent before.
    pub(super) fn close(&mut self, now: Instant, conn: ConnId, reason: &'static str) {
        if let Some(frame) = self.next_frame(conn) {
            self.outputs.push_back(Output::Send(conn, Box::new(frame)));
        }
        self.disconnect(now, conn, reason);
        self.outputs.push_back(Output::Close(conn, reason));
    }

    pub(super) fn next_frame(&mut self, conn: ConnId) -> Option<wire::CompanionFrame> {
        let session = self.sessions.get_mut(&conn)?;
        let frame = session.next_frame(self.last_event_at)?;
        if let Stage::Established(epoch) = session.stage
            && let Some(context) = self.contexts.get_mut(&epoch)
            && context.conn == Some(conn)
        {
            context.ended.record_frame(frame.seq);
        }
        Some(frame)
    }
}
