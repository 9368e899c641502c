//! One pool: which models are its own, its endpoints by address and by number, and its engine.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use penstock_engine::Engine;
use penstock_engine::input::{EndpointId, EndpointState, Input};
use penstock_engine::policy::Gate;
use penstock_engine::snapshot::Snapshot;
use penstock_engine::{Instant, Policy};
use penstock_wire as wire;
use wildmatch::WildMatch;

use crate::autopilot::{Autopilot, AutopilotEndpoint, AutopilotSettings, Scraped};
use crate::limits::WINDOW;
use crate::settings::{FlowKey, PoolSettings};
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
    pub(crate) public_flows: HashSet<Box<str>>,
    globs: Vec<WildMatch>,
    class_globs: Vec<WildMatch>,
    endpoints: Vec<Endpoint>,
    ids: HashMap<Box<str>, EndpointId>,
    /// As the filters were told it.
    open_bound: Option<u64>,
    seen_ready: usize,
    /// Endpoints that were marked down (`true`) or are tried again, since somebody asked.
    marked: Vec<(EndpointId, bool)>,
}

#[derive(Debug)]
struct Endpoint {
    address: Box<str>,
    state: EndpointState,
    /// As the filters were told it: healthy, and not marked down.
    ready: bool,
    /// Healthy, and marked down.
    down: bool,
    variant: Box<str>,
    /// What its server last said of itself; `None`: nothing, or too long ago.
    scraped: Option<Scraped>,
}

impl Pool {
    pub(crate) fn new(settings: &PoolSettings, seed: u64, now: Instant) -> Self {
        let mut pool = Self {
            name: settings.name.as_str().into(),
            engine: Engine::new(settings.policy.clone(), seed, now),
            autopilot: Autopilot::new(autopilot_settings(settings), now),
            policy: settings.policy.clone(),
            flow_key: settings.flow_key.clone(),
            class_globs: settings
                .class_globs
                .iter()
                .map(|glob| WildMatch::new(glob))
                .collect(),
            capacity_status: settings.capacity_status,
            requeues: settings.requeues,
            open_bound: None,
            seen_ready: 0,
            marked: Vec::new(),
            public_flows: HashSet::new(),
            globs: settings.models.iter().map(|glob| WildMatch::new(glob)).collect(),
            endpoints: Vec::with_capacity(settings.endpoints.len()),
            ids: HashMap::with_capacity(settings.endpoints.len()),
        };
        for (number, endpoint) in (0..).zip(&settings.endpoints) {
            let id = EndpointId(number);
            let state = EndpointState {
                ready: endpoint.ready,
                weight: endpoint.weight,
                batched_tokens_max: None,
            };
            pool.ids.insert(endpoint.address.as_str().into(), id);
            pool.endpoints.push(Endpoint {
                address: endpoint.address.as_str().into(),
                state,
                ready: false,
                down: false,
                variant: endpoint.variant.as_str().into(),
                scraped: None,
            });
            pool.engine.handle(now, Input::Endpoint { id, state });
            pool.autopilot.ready(now, id, endpoint.ready);
        }
        while let Some(input) = pool.autopilot.poll_input() {
            pool.engine.handle(now, input);
        }
        pool
    }

    /// This pool serves the model.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.globs.is_empty() || self.globs.iter().any(|glob| glob.matches(model))
    }

    /// The class set of a model, in the engine's policy: the first is for those that no glob matches.
    pub(crate) fn class_set(&self, model: &str) -> u16 {
        let matched = self.class_globs.iter().position(|glob| glob.matches(model));
        matched
            .and_then(|at| u16::try_from(at + 1).ok())
            .unwrap_or_default()
    }

    /// Lets a flow be shown, as one of at most `most`.
    pub(crate) fn show(&mut self, flow: &str, most: usize) {
        if !flow.is_empty() && self.public_flows.len() < most && !self.public_flows.contains(flow) {
            self.public_flows.insert(flow.into());
        }
    }

    /// The endpoint at an address; `None`: not one of this pool.
    pub(crate) fn endpoint(&self, address: &str) -> Option<EndpointId> {
        self.ids.get(address).copied()
    }

    /// The address of an endpoint; empty for one that never was.
    pub(crate) fn address(&self, id: EndpointId) -> &str {
        usize::try_from(id.0)
            .ok()
            .and_then(|at| self.endpoints.get(at))
            .map_or("", |it| &it.address)
    }

    /// Takes what a health check said. `true`: it changed something.
    pub(crate) fn set_ready(&mut self, now: Instant, address: &str, ready: bool) -> bool {
        let Some(id) = self.endpoint(address) else {
            return false;
        };
        let Some(endpoint) = usize::try_from(id.0)
            .ok()
            .and_then(|at| self.endpoints.get_mut(at))
        else {
            return false;
        };
        if endpoint.state.ready == ready {
            return false;
        }
        endpoint.state.ready = ready;
        self.autopilot.ready(now, id, ready);
        self.engine.handle(
            now,
            Input::Endpoint {
                id,
                state: endpoint.state,
            },
        );
        true
    }

    /// Takes what a server says of itself; the endpoint, unless it isn't one of this pool.
    pub(crate) fn take_scraped(
        &mut self,
        now: Instant,
        address: &str,
        scraped: Option<Scraped>,
    ) -> Option<EndpointId> {
        let id = self.endpoint(address)?;
        let endpoint = self.endpoints.get_mut(usize::try_from(id.0).ok()?)?;
        endpoint.scraped = scraped;
        self.autopilot.scraped(now, id, scraped);
        Some(id)
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

    /// Addresses by the endpoint's number.
    pub(crate) fn addresses(&self) -> Vec<Box<str>> {
        self.endpoints.iter().map(|it| it.address.clone()).collect()
    }

    /// The endpoints, in the order of the configuration.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EndpointId> + use<> {
        (0..self.endpoints.len()).map_while(|at| u32::try_from(at).ok().map(EndpointId))
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
            open_bound: self.open_bound,
        }
    }
}

fn autopilot_settings(settings: &PoolSettings) -> AutopilotSettings {
    let endpoints = (0..).map(EndpointId).zip(&settings.endpoints);
    AutopilotSettings {
        endpoints: endpoints
            .map(|(id, endpoint)| AutopilotEndpoint {
                id,
                variant: endpoint.variant.clone(),
                max_batch: endpoint.max_batch,
            })
            .collect(),
        slo: settings.slo,
        gates: matches!(settings.policy.gate, Gate::Auto { .. }),
        ttl: settings.policy.queue.ttl,
        window: WINDOW,
        kept: settings.kept.clone(),
    }
}
