//! The whole state, looked at the slow way: for tests and the simulated world.

use std::sync::Arc;

use penstock_engine as engine;
use thiserror::Error;

use crate::control::Control;
use crate::limits::{CONTEXTS_MAX, COUNTED_MAX, MOVED_MAX, REQUESTS_MAX, TRAIL_MAX};
use crate::register::{Name, Stage};
use crate::session::{Epoch, Stage as SessionStage};

/// What doesn't hold. Always a defect of the control or of an engine, never of what they were told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuditError {
    /// An engine's own state doesn't hold.
    #[error("pool {pool}: {source}")]
    Engine {
        /// Its name.
        pool: Arc<str>,
        /// What its engine found.
        source: engine::AuditError,
    },
    /// Two counts of the same things differ.
    #[error("{what}: {here} here, {there} there; please report this with the events that led to it")]
    Count {
        /// Of what.
        what: &'static str,
        /// One count.
        here: u64,
        /// The other.
        there: u64,
    },
    /// A statement about the state is false.
    #[error("it should hold that {what}; please report this with the events that led to it")]
    Broken {
        /// The statement.
        what: &'static str,
    },
}

fn holds(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds {
        Ok(())
    } else {
        Err(AuditError::Broken { what })
    }
}

fn same(what: &'static str, here: usize, there: u64) -> Result<(), AuditError> {
    let here = u64::try_from(here).unwrap_or(u64::MAX);
    if here == there {
        Ok(())
    } else {
        Err(AuditError::Count { what, here, there })
    }
}

impl Control {
    /// Checks every invariant of sessions, requests and engines, in time proportional to the whole.
    ///
    /// # Errors
    /// The first that doesn't hold.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.audit_engines()?;
        if self.handed_over {
            // Its filters belong to another companion already.
            return Ok(());
        }
        self.audit_contexts()?;
        self.audit_moved()?;
        self.audit_sessions()
    }

    fn audit_engines(&self) -> Result<(), AuditError> {
        for (pool, of) in self.pools.iter().enumerate() {
            of.engine.audit().map_err(|source| AuditError::Engine {
                pool: of.name.clone(),
                source,
            })?;
            let snapshot = of.engine.snapshot();
            let entries = || self.requests.entries().filter(|(_, entry)| entry.pool == pool);
            let waiting = entries().filter(|(_, entry)| entry.waits()).count();
            let granted = entries().count() - waiting;
            same("requests that wait", waiting, snapshot.waiting)?;
            // Stock may be counted in tokens; what is in flight is always requests.
            let in_flight = snapshot.flows.iter().map(|flow| flow.in_flight).sum();
            same("requests in flight", granted, in_flight)?;
            holds(
                "only what the settings don't have is retired, and nothing waits there",
                of.retired == (pool >= self.in_force) && !(of.retired && waiting > 0),
            )?;
            let known = of.autopilot.in_flight();
            let mut granted_here = known.map(|id| {
                let entry = self.requests.get(id);
                entry.is_some_and(|entry| entry.pool == pool && !entry.waits())
            });
            holds(
                "what an autopilot takes to be in flight is granted",
                granted_here.all(core::convert::identity),
            )?;
            same(
                "requests that an autopilot takes to be in flight",
                of.autopilot.in_flight().count(),
                in_flight,
            )?;
            holds(
                "an autopilot's endpoints add up to what it takes to be in flight",
                of.autopilot.audit(),
            )?;
        }
        Ok(())
    }

    fn audit_contexts(&self) -> Result<(), AuditError> {
        let contexts = &self.requests.contexts;
        let named: usize = contexts.values().map(|it| it.requests.len()).sum();
        same(
            "requests of all filters",
            named,
            u64::try_from(self.requests.len()).unwrap_or(u64::MAX),
        )?;
        holds("sessions have a limit", contexts.len() <= CONTEXTS_MAX)?;
        for (epoch, context) in contexts {
            let mut own = context
                .requests
                .iter()
                .map(|(&sequence, &id)| (sequence, self.requests.get(id)));
            holds(
                "a filter's name and its request name each other",
                own.all(|(sequence, entry)| {
                    entry.is_some_and(|entry| entry.name.epoch == *epoch && entry.name.sequence == sequence)
                }),
            )?;
            holds(
                "a filter's requests have a limit",
                context.requests.len() <= REQUESTS_MAX,
            )?;
            let speaks = context.conn.and_then(|conn| self.sessions.get(&conn));
            holds(
                "a stream speaks for a filter, or it is orphaned",
                match (speaks, context.orphaned) {
                    (Some(session), None) => {
                        matches!(session.stage, SessionStage::Established(of) if of == *epoch)
                    }
                    (None, Some(_)) => context.conn.is_none(),
                    _ => false,
                },
            )?;
            holds(
                "what is awaited the end of is granted",
                context.absent.iter().all(|id| {
                    self.requests.get(*id).is_none_or(|entry| {
                        matches!(entry.stage, Stage::Granted { .. }) && entry.name.epoch == *epoch
                    })
                }),
            )?;
            holds(
                "those that ended are remembered whole, and up to a limit",
                context.counted.audit().is_some_and(|count| count <= COUNTED_MAX),
            )?;
            let of_envoy = contexts.values().filter(|it| it.envoy == context.envoy).count();
            same(
                "sessions of an Envoy",
                of_envoy,
                u64::try_from(self.envoys.contexts_of(context.envoy)).unwrap_or(u64::MAX),
            )?;
        }
        let mut envoys: Vec<_> = contexts.values().map(|it| it.envoy).collect();
        envoys.sort_unstable();
        envoys.dedup();
        same(
            "Envoys",
            envoys.len(),
            u64::try_from(self.envoys.len()).unwrap_or(u64::MAX),
        )
    }

    fn audit_moved(&self) -> Result<(), AuditError> {
        for (name, id) in self.requests.all_moved() {
            holds(
                "a name that is moved is nobody's",
                self.requests.find(name).is_none(),
            )?;
            let lives = self
                .requests
                .get(id)
                .is_some_and(|entry| entry.trail.contains(&name));
            holds(
                "a moved name is kept for a request that lives, or a filter that may speak of it",
                lives || self.requests.contexts.contains_key(&name.epoch),
            )?;
            holds(
                "moved names have a limit",
                self.requests.moved_of(name.epoch) <= MOVED_MAX,
            )?;
        }
        for (id, entry) in self.requests.entries() {
            holds(
                "a request's former names stand for it",
                entry.trail.len() <= TRAIL_MAX
                    && entry
                        .trail
                        .iter()
                        .all(|name| self.requests.moved(*name) == Some(id)),
            )?;
        }
        Ok(())
    }

    fn audit_sessions(&self) -> Result<(), AuditError> {
        for (conn, session) in &self.sessions {
            if let SessionStage::Established(epoch) = session.stage {
                let context = self.requests.contexts.get(&epoch);
                holds(
                    "an established stream speaks for its filter",
                    context.is_some_and(|context| context.conn == Some(*conn)),
                )?;
            }
        }
        Ok(())
    }
    /// Whether this request of the root context with this epoch is granted here; `None`: it isn't known.
    #[must_use]
    pub fn is_granted(&self, epoch: u128, sequence: u64) -> Option<bool> {
        let epoch = Epoch(epoch);
        let id = self.requests.find(Name { epoch, sequence })?;
        Some(!self.requests.get(id)?.waits())
    }
}
