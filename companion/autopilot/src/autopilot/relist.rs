//! Other endpoints and other settings under an autopilot at work.
//!
//! An endpoint that isn't listed any more is followed until the last request there has ended: that says something of its
//! variant still. What is known of a variant outlives its endpoints, so that one which scales to nothing and back needn't
//! be learned again.

use penstock_engine::Instant;
use penstock_engine::input::EndpointId;
use penstock_model::Targets;
use penstock_model::slo::{Slo, Source};

use super::Autopilot;
use crate::server::Server;
use crate::types::{AutopilotEndpoint, AutopilotSettings, Kept};
use crate::variant::Variant;

/// Variants without endpoints of which is known what they were like.
const KEPT_MAX: usize = 64;

impl Autopilot {
    /// The endpoints are these from now on. New ones aren't ready until it hears so.
    pub fn relist(&mut self, now: Instant, endpoints: &[AutopilotEndpoint]) {
        let is_new = |id: EndpointId| !self.numbers.contains_key(&id);
        let came: Vec<&AutopilotEndpoint> = endpoints.iter().filter(|it| is_new(it.id)).collect();
        for server in &mut self.servers {
            server.listed = endpoints.iter().any(|it| it.id == server.id);
            if !server.listed {
                server.set_ready(now, now.since(self.began), false);
                // The engine has forgotten it.
                server.budget = None;
            }
        }
        for endpoint in came {
            let mut server = Server::new(endpoint.id, 0, endpoint.max_batch);
            server.ready = false;
            self.numbers.insert(endpoint.id, self.servers.len());
            self.servers.push(server);
        }
        self.rename(endpoints);
        self.forget_unlisted();
        self.analyse();
        self.steer();
        self.plan_exploring(now);
    }

    /// Holds to these from now on; its endpoints and its window stay.
    pub fn change(&mut self, now: Instant, settings: &AutopilotSettings) {
        for (name, kept) in &settings.kept {
            self.keep_of(name, *kept);
        }
        if self.slo_policy != settings.slo {
            self.slo_policy = settings.slo;
            // What was inferred was inferred by another rule.
            self.slo = Slo {
                targets: Targets::default(),
                source: Source::None,
            };
        }
        self.gates = settings.gates;
        self.ttl = settings.ttl;
        self.analyse();
        self.steer();
        self.plan_exploring(now);
    }

    /// Gives every server its variant by name, those that change it a new beginning.
    fn rename(&mut self, endpoints: &[AutopilotEndpoint]) {
        let mut names: Vec<String> = Vec::with_capacity(self.servers.len());
        for (number, server) in self.servers.iter_mut().enumerate() {
            let was = self.variants.get(server.variant).filter(|_| !server.is_fresh);
            let settings = endpoints.iter().find(|it| it.id == server.id);
            let name = match (settings, was) {
                (Some(settings), _) => settings.variant.clone(),
                (None, Some(was)) => was.name.clone(),
                (None, None) => String::new(),
            };
            if let Some(settings) = settings {
                server.max_batch = settings.max_batch;
            }
            if was.is_some_and(|was| was.name != name) {
                server.begin_anew();
                let flights = self.flights.values_mut();
                flights
                    .filter(|it| it.server == number)
                    .for_each(|it| it.whole = false);
            }
            server.is_fresh = false;
            names.push(name);
        }
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let mut old: Vec<Variant> = core::mem::take(&mut self.variants);
        for name in &sorted {
            let at = old.iter().position(|it| it.name == *name);
            let variant = at.map_or_else(
                || Variant::new(name.clone(), self.kept_of(name)),
                |at| old.swap_remove(at),
            );
            self.variants.push(variant);
        }
        for (server, name) in self.servers.iter_mut().zip(&names) {
            server.variant = sorted.binary_search(name).unwrap_or(0);
        }
        for gone in old {
            if let Some(kept) = gone.known() {
                self.kept.retain(|(name, _)| *name != gone.name);
                self.keep_of(&gone.name, kept);
            }
        }
    }

    /// Forgets servers that aren't listed and where nothing is in flight, and variants that no server is of.
    pub fn forget_unlisted(&mut self) {
        if !self.servers.iter().any(Server::is_over) {
            return;
        }
        let mut places = Vec::with_capacity(self.servers.len());
        let mut kept = 0;
        for server in &self.servers {
            places.push(kept);
            kept += usize::from(!server.is_over());
        }
        self.servers.retain(|server| !server.is_over());
        self.numbers = self
            .servers
            .iter()
            .enumerate()
            .map(|(number, it)| (it.id, number))
            .collect();
        for flight in self.flights.values_mut() {
            flight.server = places[flight.server];
        }
        self.rename(&[]);
    }

    fn kept_of(&self, name: &str) -> Option<Kept> {
        let kept = self.kept.iter().find(|(of, _)| of == name);
        kept.map(|(_, kept)| *kept)
    }

    fn keep_of(&mut self, name: &str, kept: Kept) {
        if self.kept_of(name).is_some() {
            return;
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push((name.to_owned(), kept));
    }
}
