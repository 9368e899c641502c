//! What goes wrong, and how it gets well again.

use std::fmt;

use penstock_control::Event;

use super::World;
use super::agenda::{Due, MILLI, Nanos, SECOND};
use super::servers::Mode;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// kill -9 of the companion.
    Kill,
    /// Its machine is gone.
    Vanish,
    /// SIGSTOP, SIGCONT.
    Freeze,
    /// SIGTERM, `reject`.
    Drain,
    /// SIGTERM, `hand_over`.
    HandOver,
    /// An older companion answers in the place of the last one.
    Elder,
    /// A stream is reset; both ends hear of it.
    Cut,
    /// Only the companion does.
    HalfFilter,
    /// Only the filter does.
    HalfCompanion,
    /// Neither does.
    Silence,
    /// Nothing arrives for a while.
    Stall,
    EnvoyKill,
    EnvoyVanish,
    /// A VM traps and is loaded again.
    Trap,
    /// Another plugin configuration, the old one drains.
    Reconfigure,
    /// An endpoint fails its health check for a while.
    Flap,
    Refuse,
    Reset,
    BreakOff,
    Hang,
    /// Envoy doesn't find a granted host.
    Misroute,
    JumpBack,
    JumpAhead,
    /// Many clients leave at once.
    Exodus,
    /// Many come at once.
    Crowd,
    /// A reload with other rules.
    Retune,
    /// An endpoint isn't listed for a while.
    Relist,
    /// A pool isn't configured for a while.
    Drop,
}

impl Kind {
    pub(super) const ALL: [Self; 28] = [
        Self::Kill,
        Self::Vanish,
        Self::Freeze,
        Self::Drain,
        Self::HandOver,
        Self::Elder,
        Self::Cut,
        Self::HalfFilter,
        Self::HalfCompanion,
        Self::Silence,
        Self::Stall,
        Self::EnvoyKill,
        Self::EnvoyVanish,
        Self::Trap,
        Self::Reconfigure,
        Self::Flap,
        Self::Refuse,
        Self::Reset,
        Self::BreakOff,
        Self::Hang,
        Self::Misroute,
        Self::JumpBack,
        Self::JumpAhead,
        Self::Exodus,
        Self::Crowd,
        Self::Retune,
        Self::Relist,
        Self::Drop,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "companion killed",
            Self::Vanish => "companion's machine gone",
            Self::Freeze => "companion frozen",
            Self::Drain => "companion told to go, reject",
            Self::HandOver => "companion told to go, hand over",
            Self::Elder => "older companion answers",
            Self::Cut => "stream cut",
            Self::HalfFilter => "stream half open at the filter",
            Self::HalfCompanion => "stream half open at the companion",
            Self::Silence => "stream silent",
            Self::Stall => "stream stalled",
            Self::EnvoyKill => "envoy killed",
            Self::EnvoyVanish => "envoy's machine gone",
            Self::Trap => "worker's VM trapped",
            Self::Reconfigure => "plugin configuration changed",
            Self::Flap => "endpoint flapped",
            Self::Refuse => "server refuses",
            Self::Reset => "server resets",
            Self::BreakOff => "server breaks off",
            Self::Hang => "server hangs",
            Self::Misroute => "host unknown to envoy",
            Self::JumpBack => "clock jumped back",
            Self::JumpAhead => "clock jumped ahead",
            Self::Exodus => "clients left at once",
            Self::Crowd => "clients came at once",
            Self::Retune => "rules changed",
            Self::Relist => "endpoint taken off the list",
            Self::Drop => "pool taken out of the configuration",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is to be put right later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A server of another mode.
    Server(usize),
    /// An endpoint that isn't ready.
    Endpoint(usize),
    /// A host that this Envoy doesn't know.
    Blind(usize),
    /// An older companion.
    Elder,
    /// A server that isn't listed.
    Absent(usize),
    /// A pool that isn't configured.
    Dropped(usize),
}

impl World {
    /// The next fault.
    pub(super) fn fault(&mut self) {
        if self.healing {
            return;
        }
        let mean = self.setting.fault_interval;
        let wait = self.dice.around(mean);
        self.agenda.put(self.now + wait.max(MILLI), Due::Fault);
        let Some(kind) = self.dice.any(&self.setting.faults.clone()) else {
            return;
        };
        self.note(|| format!("FAULT: {kind}"));
        *self.tally.faults.entry(kind.name()).or_default() += 1;
        self.befall(kind);
    }

    fn befall(&mut self, kind: Kind) {
        let mut streams = || {
            let ids: Vec<u64> = self.streams.keys().copied().collect();
            self.dice.any(&ids)
        };
        match kind {
            Kind::Kill | Kind::Vanish => {
                let silently = kind == Kind::Vanish;
                let lived = self.companion.control.is_some();
                self.kill_companion(silently);
                if lived {
                    let mean = self.dice.one(&[50 * MILLI, SECOND, 8 * SECOND]);
                    let away = self.dice.around(mean);
                    self.agenda.put(self.now + away, Due::Boot);
                }
            }
            Kind::Freeze => {
                let mean = self.dice.one(&[50 * MILLI, 2 * SECOND, 8 * SECOND]);
                let by = self.dice.around(mean);
                self.freeze_companion(by);
            }
            Kind::Drain => self.drain_companion(),
            Kind::HandOver => self.hand_over(),
            Kind::Elder => {
                self.kill_companion(false);
                self.boot(true);
                self.heal_later(Fault::Elder, 2 * SECOND);
            }
            Kind::Cut => {
                if let Some(id) = streams() {
                    let (filter, companion) = (self.delay(), self.delay());
                    self.break_stream(id, Some(filter), Some(companion));
                }
            }
            Kind::HalfFilter => {
                if let Some(id) = streams() {
                    self.silence_stream(id, true);
                }
            }
            Kind::HalfCompanion => {
                if let Some(id) = streams() {
                    let soon = self.delay();
                    self.break_stream(id, Some(soon), None);
                }
            }
            Kind::Silence => {
                if let Some(id) = streams() {
                    self.silence_stream(id, false);
                }
            }
            Kind::Stall => {
                if let Some(id) = streams() {
                    let by = self.dice.below(3 * SECOND);
                    self.stall_stream(id, by);
                }
            }
            Kind::EnvoyKill | Kind::EnvoyVanish => {
                let envoy = self.one_envoy();
                self.kill_envoy(envoy, kind == Kind::EnvoyVanish);
            }
            Kind::Trap => {
                let (envoy, vm) = (self.one_envoy(), self.dice.below(self.setting.workers as u64));
                if self.envoys[envoy].alive {
                    self.trap(envoy, vm as usize);
                }
            }
            Kind::Reconfigure => {
                let envoy = self.one_envoy();
                if self.envoys[envoy].alive {
                    self.reconfigure(envoy);
                }
            }
            Kind::Flap => {
                let server = self.one_server();
                self.list(server, false);
                let mean = self.dice.one(&[100 * MILLI, 5 * SECOND]);
                self.heal_later(Fault::Endpoint(server), mean);
            }
            Kind::Refuse | Kind::Reset | Kind::BreakOff | Kind::Hang => {
                let server = self.one_server();
                let mode = match kind {
                    Kind::Refuse => Mode::Refuses,
                    Kind::Reset => Mode::Resets,
                    Kind::BreakOff => Mode::BreaksOff,
                    _ => Mode::Hangs,
                };
                self.set_mode(server, mode);
                self.heal_later(Fault::Server(server), 3 * SECOND);
            }
            Kind::Misroute => {
                let (envoy, server) = (self.one_envoy(), self.one_server());
                self.envoys[envoy].blind = Some(self.servers[server].address.clone());
                self.heal_later(Fault::Blind(envoy), SECOND);
            }
            Kind::JumpBack | Kind::JumpAhead => self.jump(kind == Kind::JumpAhead),
            Kind::Exodus => {
                let percent = self.dice.one(&[30, 100]);
                self.exodus(percent);
            }
            Kind::Crowd => {
                let count = self.dice.between(5, 60);
                self.crowd(count);
            }
            Kind::Retune => self.retune(),
            Kind::Relist => self.relist(),
            Kind::Drop => self.drop_pool(),
        }
    }

    fn jump(&mut self, ahead: bool) {
        self.jumped = true;
        let by = if ahead {
            let mean = self.dice.one(&[SECOND, 60 * SECOND, 1_000_000 * SECOND]);
            self.dice.around(mean)
        } else {
            self.dice.around(5 * SECOND)
        };
        if !ahead {
            self.jumped_back += by;
        }
        if self.dice.percent(50) {
            self.jump_companion(ahead, by);
        } else {
            let envoy = self.one_envoy();
            self.jump_envoy(envoy, ahead, by);
        }
    }

    fn one_envoy(&mut self) -> usize {
        self.dice.below(self.envoys.len() as u64) as usize
    }

    fn one_server(&mut self) -> usize {
        self.dice.below(self.servers.len() as u64) as usize
    }

    pub(super) fn heal_later(&mut self, fault: Fault, mean: Nanos) {
        let after = self.dice.around(mean);
        self.agenda.put(self.now + after, Due::Heal(fault));
    }

    /// A fault is over.
    pub(super) fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Server(server) => self.set_mode(server, Mode::Well),
            Fault::Endpoint(server) => self.list(server, true),
            Fault::Blind(envoy) => self.envoys[envoy].blind = None,
            Fault::Absent(server) => self.list_again(server),
            Fault::Dropped(pool) => self.name_again(pool),
            Fault::Elder => {
                if self.companion.control.is_some() && self.companion.term <= 1 {
                    self.kill_companion(false);
                }
                self.boot(false);
            }
        }
    }

    /// A health check's verdict changes.
    fn list(&mut self, server: usize, ready: bool) {
        let of = &mut self.servers[server];
        if of.listed == ready {
            return;
        }
        of.listed = ready;
        let (pool, address) = (
            self.setting.pools[of.pool].name.as_str().into(),
            of.address.clone(),
        );
        self.tell_companion(Event::EndpointReady { pool, address, ready });
    }

    /// No more faults; what is wrong gets well.
    pub(super) fn heal_all(&mut self) {
        self.healing = true;
        self.note(|| "all is well from here on".to_owned());
        for server in 0..self.servers.len() {
            self.set_mode(server, Mode::Well);
            self.list(server, true);
        }
        for envoy in &mut self.envoys {
            envoy.blind = None;
        }
        self.restore();
        let life = self.companion.life;
        self.thaw_companion(life);
        self.heal(Fault::Elder);
    }
}
