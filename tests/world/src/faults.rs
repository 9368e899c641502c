//! Faults: their kinds, how each is injected, and how it is repaired.

use std::fmt;

use penstock_control::{Event, PoolEvent};

use super::World;
use super::event::{Repair, SimEvent};
use super::servers::Mode;
use super::time::{MILLI, Nanos, SECOND};

/// The longest partition, and the longest time without the store. A new leader serves filters that no leader knew after half a
/// minute, even if the last leader may still have others.
const PARTITION_MAX: Nanos = 15 * SECOND;

macro_rules! fault_kinds {
    ($($(#[$doc:meta])* $kind:ident => $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum FaultKind {
            $($(#[$doc])* $kind,)*
        }

        impl FaultKind {
            /// Every kind. The order is part of a seed's meaning.
            pub(super) const ALL: &'static [Self] = &[$(Self::$kind,)*];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Whether this fault needs several companions.
            pub(super) const fn needs_replicas(self) -> bool {
                self as u8 >= Self::LeaderKill as u8
            }
        }
    };
}

fault_kinds! {
    /// `kill -9` of the companion.
    CompanionKill => "companion killed",
    /// The companion's machine disappears: connections end without a reset.
    CompanionHostLoss => "companion's machine lost",
    /// SIGSTOP, later SIGCONT.
    CompanionFreeze => "companion frozen",
    /// SIGTERM with shutdown mode `reject`.
    CompanionDrain => "companion drained, reject",
    /// SIGTERM with shutdown mode `hand_over`.
    CompanionHandOver => "companion drained, hand over",
    /// A companion with an older term takes the place of the last one.
    OlderCompanion => "older companion answers",
    /// A stream is reset; both ends notice.
    StreamReset => "stream reset",
    /// A stream breaks; only the companion notices at once.
    StreamHalfOpenAtFilter => "stream half open at the filter",
    /// A stream breaks; only the filter notices.
    StreamHalfOpenAtCompanion => "stream half open at the companion",
    /// A stream carries nothing any more; only the filter's keepalive notices.
    StreamSilent => "stream silent",
    /// A stream delivers nothing for a while.
    StreamStall => "stream stalled",
    EnvoyKill => "envoy killed",
    EnvoyHostLoss => "envoy's machine lost",
    /// A VM traps and is loaded again.
    VmTrap => "worker's VM trapped",
    /// A new plugin configuration replaces the old one, which drains.
    FilterReconfigured => "plugin configuration changed",
    /// An endpoint fails its health check for a while.
    EndpointFlap => "endpoint flapped",
    ServerRefuses => "server refuses connections",
    ServerResets => "server resets connections",
    ServerTruncates => "server truncates responses",
    ServerHangs => "server hangs",
    /// A granted host is missing from Envoy's cluster.
    HostMissing => "host missing in envoy",
    ClockBack => "clock jumped back",
    ClockAhead => "clock jumped ahead",
    /// Many clients disconnect at once.
    ClientsLeave => "clients left at once",
    /// Many clients arrive at once.
    ClientBurst => "clients arrived at once",
    /// A reload with other policy rules.
    RulesChanged => "rules changed",
    /// An endpoint is missing from its pool's list for a while.
    EndpointRemoved => "endpoint removed from the list",
    /// A pool is missing from the configuration for a while.
    PoolRemoved => "pool removed from the configuration",
    /// A server answers 429 or 503 while it works on some requests.
    ServerPushesBack => "server pushes back",
    /// `kill -9` of the leader.
    LeaderKill => "leader killed",
    /// SIGTERM to the leader, with shutdown mode `hand_over`.
    LeaderHandOver => "leader drained, hand over",
    /// SIGSTOP of the leader for a time about the lease's, later SIGCONT.
    LeaderFreeze => "leader frozen",
    /// A companion and the store of the lease don't reach each other, or only in one direction.
    StoreCutOff => "companion cut off from the lease store",
    /// A companion and an Envoy don't reach each other, or only in one direction.
    EnvoyCutOff => "companion cut off from an envoy",
    /// The store of the lease is away for a while.
    StoreRestart => "lease store restarted",
    /// The leader reaches neither the store nor one of the Envoys, and keeps the others.
    LeaderIsolated => "leader cut off from the lease store and an envoy",
    AllCompanionsKill => "all companions killed",
}

impl FaultKind {
    /// Whether this fault changes the set of usable endpoints or the bounds.
    pub(super) const fn changes_endpoints(self) -> bool {
        matches!(
            self,
            Self::EndpointFlap
                | Self::ServerRefuses
                | Self::ServerResets
                | Self::ServerTruncates
                | Self::ServerHangs
                | Self::HostMissing
                | Self::RulesChanged
                | Self::EndpointRemoved
                | Self::PoolRemoved
        )
    }

    /// Whether a filter may have to wait for a companion, or a client for a filter, because of this fault.
    pub(super) const fn delays_decisions(self) -> bool {
        !matches!(
            self,
            Self::EndpointFlap
                | Self::ServerRefuses
                | Self::ServerResets
                | Self::ServerTruncates
                | Self::ServerHangs
                | Self::HostMissing
                | Self::ClientsLeave
                | Self::ClientBurst
                | Self::RulesChanged
                | Self::EndpointRemoved
                | Self::PoolRemoved
                | Self::ServerPushesBack
        )
    }

    /// Whether a session may be silent because of this fault, while its filter lives.
    pub(super) const fn silences_sessions(self) -> bool {
        matches!(
            self,
            Self::CompanionHostLoss
                | Self::StreamHalfOpenAtFilter
                | Self::StreamHalfOpenAtCompanion
                | Self::StreamSilent
                | Self::StreamStall
                | Self::EnvoyHostLoss
                | Self::EnvoyCutOff
                | Self::LeaderIsolated
        )
    }

    /// Whether the world can't tell with this fault which waiting request is the next, or when it must go.
    pub(super) const fn blurs_turns(self) -> bool {
        let delays =
            matches!(self, Self::CompanionFreeze | Self::LeaderFreeze | Self::ClockBack | Self::ClockAhead);
        self.changes_endpoints() || delays || matches!(self, Self::ServerPushesBack)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl World {
    /// Injects a fault and schedules the next one.
    pub(super) fn next_fault(&mut self) {
        if self.faults_over {
            return;
        }
        let mean = self.scenario.fault_interval;
        let wait = self.rng.exponential(mean);
        self.event_queue.schedule(self.now + wait.max(MILLI), SimEvent::NextFault);
        let Some(kind) = self.rng.choose_any(&self.scenario.faults.clone()) else {
            return;
        };
        self.note(|| format!("FAULT: {kind}"));
        *self.summary.faults.entry(kind.name()).or_default() += 1;
        self.note_fault(kind);
        self.inject(kind);
    }

    fn inject(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::CompanionKill
            | FaultKind::CompanionHostLoss
            | FaultKind::CompanionFreeze
            | FaultKind::CompanionDrain
            | FaultKind::CompanionHandOver
            | FaultKind::OlderCompanion => self.inject_at_companion(kind),
            FaultKind::StreamReset
            | FaultKind::StreamHalfOpenAtFilter
            | FaultKind::StreamHalfOpenAtCompanion
            | FaultKind::StreamSilent
            | FaultKind::StreamStall => self.inject_at_stream(kind),
            FaultKind::EnvoyKill
            | FaultKind::EnvoyHostLoss
            | FaultKind::VmTrap
            | FaultKind::FilterReconfigured
            | FaultKind::HostMissing => self.inject_at_envoy(kind),
            FaultKind::EndpointFlap
            | FaultKind::ServerRefuses
            | FaultKind::ServerResets
            | FaultKind::ServerTruncates
            | FaultKind::ServerHangs
            | FaultKind::ServerPushesBack => self.inject_at_server(kind),
            FaultKind::ClockBack | FaultKind::ClockAhead => self.jump_a_clock(kind == FaultKind::ClockAhead),
            FaultKind::ClientsLeave => {
                let percent = self.rng.choose(&[30, 100]);
                self.clients_leave_at_once(percent);
            }
            FaultKind::ClientBurst => {
                let count = self.rng.between(5, 60);
                self.client_burst(count);
            }
            FaultKind::LeaderKill
            | FaultKind::LeaderHandOver
            | FaultKind::LeaderFreeze
            | FaultKind::StoreCutOff
            | FaultKind::EnvoyCutOff
            | FaultKind::StoreRestart
            | FaultKind::LeaderIsolated
            | FaultKind::AllCompanionsKill => self.inject_among_companions(kind),
            FaultKind::RulesChanged => self.change_rules(),
            FaultKind::EndpointRemoved => self.remove_endpoint(),
            FaultKind::PoolRemoved => self.remove_pool(),
        }
    }

    fn inject_at_companion(&mut self, kind: FaultKind) {
        let index = self.random_companion();
        match kind {
            FaultKind::CompanionFreeze => {
                let mean = self.rng.choose(&[50 * MILLI, 2 * SECOND, 8 * SECOND]);
                let duration = self.rng.exponential(mean);
                self.freeze_companion(index, duration);
            }
            FaultKind::CompanionDrain => self.drain_companion(index),
            FaultKind::CompanionHandOver => self.hand_over_companion(index),
            FaultKind::OlderCompanion => {
                self.kill_companion(index, false);
                self.start_companion(index, true);
                self.schedule_repair(Repair::OlderCompanion(index), 2 * SECOND);
            }
            _ => {
                let mean = self.rng.choose(&[50 * MILLI, SECOND, 8 * SECOND]);
                self.kill_for_a_while(index, kind == FaultKind::CompanionHostLoss, mean);
            }
        }
    }

    fn kill_for_a_while(&mut self, index: usize, silently: bool, mean: Nanos) {
        let was_running = self.companions[index].control.is_some();
        self.kill_companion(index, silently);
        if was_running {
            let downtime = self.rng.exponential(mean);
            self.event_queue.schedule(self.now + downtime, SimEvent::CompanionStarts(index));
        }
    }

    fn inject_among_companions(&mut self, kind: FaultKind) {
        let lease = self.scenario.lease;
        let index = match self.leader() {
            Some(leader) if self.rng.percent(80) => leader,
            _ => self.random_companion(),
        };
        match kind {
            FaultKind::LeaderKill => {
                let mean = self.rng.choose(&[SECOND / 2, 5 * SECOND, 15 * SECOND]);
                self.kill_for_a_while(index, false, mean);
            }
            FaultKind::LeaderHandOver => self.hand_over_companion(index),
            FaultKind::LeaderFreeze => {
                let duration = self.rng.between(lease / 2, lease * 3);
                self.freeze_companion(index, duration);
            }
            FaultKind::StoreCutOff => {
                let mean = self.rng.choose(&[lease / 2, 2 * lease, 5 * lease]);
                let duration = self.rng.exponential(mean).min(PARTITION_MAX);
                self.cut_store(index, duration);
            }
            FaultKind::LeaderIsolated => {
                let envoy = self.random_envoy();
                let duration = self.rng.between(SECOND, PARTITION_MAX);
                self.cut_store(index, duration);
                self.cut_envoy(index, envoy, duration);
            }
            FaultKind::EnvoyCutOff => {
                let index = self.random_companion();
                let envoy = self.random_envoy();
                let mean = self.rng.choose(&[SECOND, 5 * SECOND, 8 * SECOND]);
                let duration = self.rng.exponential(mean).min(PARTITION_MAX);
                self.cut_envoy(index, envoy, duration);
            }
            FaultKind::StoreRestart => {
                let mean = self.rng.choose(&[lease / 2, 2 * lease, 5 * lease]);
                let downtime = self.rng.exponential(mean).min(PARTITION_MAX);
                self.restart_store(downtime);
            }
            _ => {
                for index in 0..self.companions.len() {
                    let silently = self.rng.percent(20);
                    let mean = self.rng.choose(&[50 * MILLI, SECOND, 8 * SECOND]);
                    self.kill_for_a_while(index, silently, mean);
                }
            }
        }
    }

    /// The companion that leads, if one of several does.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.companions.len()).find(|index| self.is_in_charge(*index))
    }

    fn inject_at_stream(&mut self, kind: FaultKind) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        let Some(id) = self.rng.choose_any(&ids) else {
            return;
        };
        match kind {
            FaultKind::StreamHalfOpenAtFilter => self.silence_stream(id, true),
            FaultKind::StreamHalfOpenAtCompanion => {
                let filter = self.delay();
                self.break_stream(id, Some(filter), None);
            }
            FaultKind::StreamSilent => self.silence_stream(id, false),
            FaultKind::StreamStall => {
                let duration = self.rng.below(3 * SECOND);
                self.stall_stream(id, duration);
            }
            _ => {
                let (filter, companion) = (self.delay(), self.delay());
                self.break_stream(id, Some(filter), Some(companion));
            }
        }
    }

    fn inject_at_envoy(&mut self, kind: FaultKind) {
        let envoy = self.random_envoy();
        match kind {
            FaultKind::VmTrap => {
                let vm = self.rng.below(self.scenario.workers as u64);
                if self.envoys[envoy].alive {
                    self.trap(envoy, vm as usize);
                }
            }
            FaultKind::FilterReconfigured => {
                if self.envoys[envoy].alive {
                    self.reconfigure(envoy);
                }
            }
            FaultKind::HostMissing => {
                let server = self.random_server();
                self.envoys[envoy].missing_host = Some(self.servers[server].address.clone());
                self.schedule_repair(Repair::MissingHost(envoy), SECOND);
            }
            _ => self.kill_envoy(envoy, kind == FaultKind::EnvoyHostLoss),
        }
    }

    fn inject_at_server(&mut self, kind: FaultKind) {
        let server = self.random_server();
        let mode = match kind {
            FaultKind::ServerRefuses => Mode::Refuses,
            FaultKind::ServerResets => Mode::Resets,
            FaultKind::ServerTruncates => Mode::Truncates,
            FaultKind::ServerHangs => Mode::Hangs,
            FaultKind::ServerPushesBack => Mode::PushesBack(self.rng.below(4) as usize),
            _ => {
                self.set_ready(server, false);
                let mean = self.rng.choose(&[100 * MILLI, 5 * SECOND]);
                return self.schedule_repair(Repair::EndpointReady(server), mean);
            }
        };
        self.set_mode(server, mode);
        self.schedule_repair(Repair::ServerMode(server), 3 * SECOND);
    }

    fn jump_a_clock(&mut self, ahead: bool) {
        self.clock_jumped = true;
        let distance = if ahead {
            let mean = self.rng.choose(&[SECOND, 60 * SECOND, 1_000_000 * SECOND]);
            self.rng.exponential(mean)
        } else {
            self.rng.exponential(5 * SECOND)
        };
        if !ahead {
            self.clock_set_back += distance;
        }
        // The leases of several companions need clocks that don't jump.
        if self.scenario.lease == 0 && self.rng.percent(50) {
            let index = self.random_companion();
            self.jump_companion(index, ahead, distance);
        } else {
            let envoy = self.random_envoy();
            self.jump_envoy(envoy, ahead, distance);
        }
    }

    /// Draws nothing if there is only one.
    pub(super) fn random_companion(&mut self) -> usize {
        match self.companions.len() {
            1 => 0,
            count => self.rng.below(count as u64) as usize,
        }
    }

    fn random_envoy(&mut self) -> usize {
        self.rng.below(self.envoys.len() as u64) as usize
    }

    fn random_server(&mut self) -> usize {
        self.rng.below(self.servers.len() as u64) as usize
    }

    pub(super) fn schedule_repair(&mut self, repair: Repair, mean: Nanos) {
        let wait = self.rng.exponential(mean);
        self.event_queue.schedule(self.now + wait, SimEvent::Repair(repair));
    }

    /// Ends a fault's effect.
    pub(super) fn repair(&mut self, repair: Repair) {
        match repair {
            Repair::ServerMode(server) => self.set_mode(server, Mode::Healthy),
            Repair::EndpointReady(server) => self.set_ready(server, true),
            Repair::MissingHost(envoy) => self.envoys[envoy].missing_host = None,
            Repair::RemovedEndpoint(server) => self.restore_endpoint(server),
            Repair::RemovedPool(pool) => self.restore_pool(pool),
            Repair::OlderCompanion(index) => {
                let companion = &self.companions[index];
                if companion.control.is_some() && companion.term == 1 {
                    self.kill_companion(index, false);
                }
                self.start_companion(index, false);
            }
        }
    }

    /// Changes the result of a server's health check.
    fn set_ready(&mut self, index: usize, ready: bool) {
        let server = &mut self.servers[index];
        if server.ready == ready {
            return;
        }
        server.ready = ready;
        let (pool, address) = (self.scenario.pools[server.pool].name.as_str().into(), server.address.clone());
        self.deliver_to_all(&Event::Pool(pool, PoolEvent::EndpointReady { address, ready }));
    }

    /// Ends all faults for the rest of the world's run.
    pub(super) fn repair_all(&mut self) {
        self.faults_over = true;
        self.note(|| "no more faults".to_owned());
        for server in 0..self.servers.len() {
            self.set_mode(server, Mode::Healthy);
            self.set_ready(server, true);
        }
        for envoy in &mut self.envoys {
            envoy.missing_host = None;
        }
        self.restore_configuration();
        self.start_store();
        self.end_partitions();
        for index in 0..self.companions.len() {
            self.thaw_companion(self.companions[index].generation);
            self.repair(Repair::OlderCompanion(index));
        }
    }
}
