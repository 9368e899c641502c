//! One pool: which models are its own, its engine, and what its servers are seen to do. Its endpoints are in `listing`.

use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::Engine;
use penstock_engine::input::EndpointId;
use penstock_engine::policy::Gate;
use penstock_engine::snapshot::Snapshot;
use penstock_engine::{Instant, Policy};
use penstock_wire as wire;
use wildmatch::WildMatch;

use crate::autopilot::{Autopilot, AutopilotSettings};
use crate::limits::WINDOW;
use crate::listing::Endpoint;
use crate::rewrite::Rewriter;
use crate::settings::{FlowKey, PoolSettings};
use crate::shown::Shown;
use crate::status::ServerStatus;

/// A pool and what decides for it.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: Arc<str>,
    pub(crate) engine: Engine,
    /// What its servers are seen to do.
    pub(crate) autopilot: Autopilot,
    pub(crate) policy: Policy,
    pub(crate) flow_key: Vec<FlowKey>,
    pub(crate) capacity_status: u16,
    /// How often a request may be queued again.
    pub(crate) requeues: u32,
    /// Flows whose identity may be shown: it came from a header, and there was room.
    pub(crate) shown: Shown,
    /// The models that its servers are asked for instead.
    pub(crate) rewriter: Rewriter,
    /// The configuration doesn't have it any more: it is here until the last of its requests has ended.
    pub(crate) retired: bool,
    globs: Vec<WildMatch>,
    class_globs: Vec<WildMatch>,
    /// By number; a number is given again when nothing knows it any more.
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) ids: HashMap<Box<str>, EndpointId>,
    /// As the filters were told it.
    open_bound: Option<u64>,
    seen_ready: usize,
    /// Endpoints that were marked down (`true`) or are tried again, since somebody asked.
    marked: Vec<(EndpointId, bool)>,
}

impl Pool {
    /// A pool that has no endpoints yet.
    pub(crate) fn new(settings: &PoolSettings, seed: u64, now: Instant) -> Self {
        let mut engine = Engine::new(settings.policy.clone(), seed, now);
        engine.report_usage(settings.reported);
        Self {
            name: settings.name.as_str().into(),
            engine,
            autopilot: Autopilot::new(autopilot_settings(settings), now),
            policy: settings.policy.clone(),
            flow_key: settings.flow_key.clone(),
            class_globs: globs(&settings.class_globs),
            capacity_status: settings.capacity_status,
            requeues: settings.requeues,
            open_bound: None,
            seen_ready: 0,
            marked: Vec::new(),
            shown: Shown::default(),
            rewriter: Rewriter::new(&settings.rewrite),
            retired: false,
            globs: globs(&settings.models),
            endpoints: Vec::with_capacity(settings.endpoints.len()),
            ids: HashMap::with_capacity(settings.endpoints.len()),
        }
    }

    /// Holds to these from now on, as far as its engine isn't concerned. `true`: models are of other class sets.
    pub(crate) fn change(&mut self, now: Instant, settings: &PoolSettings) -> bool {
        if self.flow_key != settings.flow_key {
            // What names a flow now may be nobody's business.
            self.shown.clear();
        }
        self.retired = false;
        self.engine.report_usage(settings.reported);
        self.flow_key.clone_from(&settings.flow_key);
        self.policy = settings.policy.clone();
        self.capacity_status = settings.capacity_status;
        self.requeues = settings.requeues;
        self.rewriter = Rewriter::new(&settings.rewrite);
        self.globs = globs(&settings.models);
        self.autopilot.change(now, &autopilot_settings(settings));
        let class_globs = globs(&settings.class_globs);
        let changed = class_globs != self.class_globs;
        self.class_globs = class_globs;
        changed
    }

    /// This pool serves the model.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.globs.is_empty() || self.globs.iter().any(|glob| glob.matches(model))
    }

    /// It is of the configuration, and serves the model.
    pub(crate) fn takes(&self, model: &str) -> bool {
        !self.retired && self.serves(model)
    }

    /// It is retired, and the last of its requests has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.retired && self.engine.waiting() == 0 && self.autopilot.in_flight().next().is_none()
    }

    /// Something isn't listed any more, and nothing runs there.
    pub(crate) fn may_vacate(&self) -> bool {
        let mut all = (0..).map(EndpointId).zip(&self.endpoints);
        all.any(|(id, it)| !it.listed && !it.address.is_empty() && !self.engine.has_endpoint(id))
    }

    /// The class set of a model, in the engine's policy: the first is for those that no glob matches.
    pub(crate) fn class_set(&self, model: &str) -> u16 {
        let matched = self.class_globs.iter().position(|glob| glob.matches(model));
        matched
            .and_then(|at| u16::try_from(at + 1).ok())
            .unwrap_or_default()
    }

    /// The servers by their endpoints' numbers, with the requests that aren't ours as `snapshot` has them.
    pub(crate) fn servers(&self, snapshot: &Snapshot) -> Vec<ServerStatus> {
        let mut servers: Vec<ServerStatus> = self
            .endpoints
            .iter()
            .map(|endpoint| ServerStatus {
                variant: endpoint.variant.to_string(),
                scraped: endpoint.scraped,
                foreign: 0,
            })
            .collect();
        for endpoint in &snapshot.endpoints {
            let server = usize::try_from(endpoint.id.0)
                .ok()
                .and_then(|at| servers.get_mut(at));
            if let Some(server) = server {
                server.foreign = endpoint.foreign;
            }
        }
        servers
    }

    /// Looks which endpoints are ready and what `envoys` Envoys may have in flight without a companion, each of them.
    /// `true`: that has changed.
    pub(crate) fn look(&mut self, envoys: usize) -> bool {
        let mut changed = false;
        for (id, endpoint) in (0..).map(EndpointId).zip(&mut self.endpoints) {
            let ready = self.engine.is_ready(id);
            changed |= core::mem::replace(&mut endpoint.ready, ready) != ready;
            let down = endpoint.state.ready && !ready;
            if core::mem::replace(&mut endpoint.down, down) != down && endpoint.state.ready {
                self.marked.push((id, down));
            }
        }
        self.seen_ready = self.engine.ready_count();
        let envoys = u64::try_from(envoys).unwrap_or(u64::MAX).max(1);
        let bound = self.engine.full_bound().map(|bound| (bound / envoys).max(1));
        changed | (core::mem::replace(&mut self.open_bound, bound) != bound)
    }

    /// What the looks have found since the last call: endpoints that were marked down (`true`) or are tried again.
    pub(crate) fn take_marked(&mut self) -> Vec<(EndpointId, bool)> {
        core::mem::take(&mut self.marked)
    }

    /// Whether so many endpoints were ready at the last look as are now.
    pub(crate) fn is_as_seen(&self) -> bool {
        self.engine.ready_count() == self.seen_ready
    }

    /// What was seen at the last look, as the filters are told it.
    pub(crate) fn endpoints(&self) -> wire::Endpoints {
        let ready = self.endpoints.iter().filter(|it| it.ready);
        wire::Endpoints {
            pool: self.name.to_string(),
            ready: ready.map(|it| it.address.to_string()).collect(),
            fallback_bound: self.open_bound,
        }
    }
}

fn globs(of: &[String]) -> Vec<WildMatch> {
    of.iter().map(|glob| WildMatch::new(glob)).collect()
}

fn autopilot_settings(settings: &PoolSettings) -> AutopilotSettings {
    AutopilotSettings {
        endpoints: Vec::new(),
        slo: settings.slo,
        gates: matches!(settings.policy.gate, Gate::Auto { .. }),
        ttl: settings.policy.queue.ttl,
        window: WINDOW,
        kept: settings.kept.clone(),
    }
}
