//! A whole world in virtual time: clients, Envoys with filter cores, a network, a companion with its engines, model
//! servers, and the faults that befall them. Everything in it follows from one seed, so a failure happens again.
//!
//! The filters, the control and the engines are the real ones; all else is as little as shows what is true. What must
//! hold is in `books`: one end for each request, nothing granted twice or after its end, no server over its bound but
//! for what was adopted, order in each flow, and nothing left of anything when all is quiet.

mod agenda;
mod books;
mod clients;
mod companion;
mod dice;
mod envoy;
mod faults;
mod http;
mod network;
mod reloads;
mod report;
mod servers;
mod setting;

use std::collections::{BTreeMap, VecDeque};

use agenda::{Agenda, Due, Nanos, SECOND};
use clients::Client;
use companion::Companion;
use dice::Dice;
use envoy::{Envoy, Root};
use http::Http;
use network::Stream;
use reloads::Differing;
pub use report::{Failure, Tally};
use servers::{Job, Mode, Server};
use setting::Setting;

/// Lines of a trace that are kept.
const TRACE: usize = 4_000;
/// The world's zero, far enough from the clocks' own for them to jump back.
const START: Nanos = 1_000 * SECOND;
/// How long a world that is well may take until nothing happens in it any more.
const CALM_MAX: Nanos = 600 * SECOND;
/// How long nothing happens before the books are closed.
const REST: Nanos = 40 * SECOND;

/// Everything.
#[derive(Debug)]
struct World {
    setting: Setting,
    dice: Dice,
    now: Nanos,
    agenda: Agenda,
    companion: Companion,
    envoys: Vec<Envoy>,
    roots: BTreeMap<u64, Root>,
    roots_begun: u64,
    /// Of every root context that ever was.
    epochs: BTreeMap<u64, u128>,
    streams: BTreeMap<u64, Stream>,
    /// Whose each stream is or was.
    stream_roots: BTreeMap<u64, u64>,
    streams_opened: u64,
    https: BTreeMap<u64, Http>,
    https_begun: u64,
    servers: Vec<Server>,
    jobs: BTreeMap<u64, Job>,
    jobs_begun: u64,
    clients: Vec<Client>,
    /// The version of the policy in force.
    policy: u64,
    /// What of that isn't as the setting says.
    differing: Differing,
    /// By pool, the most that an Envoy was ever told it may have in flight by itself; none: no bound.
    open_bounds: Vec<Option<u64>>,
    /// The companion whose word a root context is hearing, by its life and its term.
    by_companion: Option<(u64, u64)>,
    /// A clock jumped,
    jumped: bool,
    /// and back by so much in all: a deadline may be that much later.
    jumped_back: Nanos,
    /// No more faults.
    healing: bool,
    tally: Tally,
    traced: bool,
    trace: VecDeque<String>,
    failure: Option<String>,
}

/// Runs the world of this seed to its end.
///
/// # Errors
/// What didn't hold, with the last events before it.
pub fn run(seed: u64) -> Result<Tally, Box<Failure>> {
    let what = match World::new(seed, false).live() {
        Ok(tally) => return Ok(tally),
        Err(what) => what,
    };
    // Once more, told.
    let mut again = World::new(seed, true);
    let what_again = again.live();
    let what = match what_again {
        Err(same) if same == what => what,
        other => format!("{what}; and the second time: {other:?}"),
    };
    Err(Box::new(Failure {
        seed,
        what,
        trace: again.trace.into(),
    }))
}

impl World {
    fn new(seed: u64, traced: bool) -> Self {
        let mut dice = Dice::new(seed);
        let setting = Setting::draw(seed, &mut dice);
        let servers = setting.pools.iter().enumerate().flat_map(|(pool, of)| {
            of.servers.iter().map(move |address| Server {
                address: address.clone(),
                pool,
                mode: Mode::Well,
                listed: true,
            })
        });
        let envoys = (0..setting.envoys).map(|_| Envoy::new(setting.workers));
        Self {
            servers: servers.collect(),
            envoys: envoys.collect(),
            open_bounds: setting.pools.iter().map(|it| it.pool_bound).collect(),
            setting,
            dice,
            now: START,
            agenda: Agenda::default(),
            companion: Companion::default(),
            roots: BTreeMap::new(),
            roots_begun: 0,
            epochs: BTreeMap::new(),
            streams: BTreeMap::new(),
            stream_roots: BTreeMap::new(),
            streams_opened: 0,
            https: BTreeMap::new(),
            https_begun: 0,
            jobs: BTreeMap::new(),
            jobs_begun: 0,
            clients: Vec::new(),
            policy: 1,
            differing: Differing::default(),
            by_companion: None,
            jumped: false,
            jumped_back: 0,
            healing: false,
            tally: Tally::default(),
            traced,
            trace: VecDeque::new(),
            failure: None,
        }
    }

    /// From its beginning to its end.
    fn live(&mut self) -> Result<Tally, String> {
        self.note(|| "begin".to_owned());
        if self.traced {
            let setting = format!("{:?}", self.setting);
            self.note(|| setting);
        }
        self.begin();
        self.go_on(|it| it.clients.len() as u64 >= it.setting.requests, Nanos::MAX)?;
        self.heal_all();
        let calm = self.now + CALM_MAX + self.jumped_back;
        self.go_on(Self::all_ended, calm)?;
        let rest = self.now + REST + self.jumped_back;
        self.go_on(|it| it.now >= rest, rest)?;
        self.check_rest();
        self.tally.worlds = 1;
        match self.failure.take() {
            Some(what) => Err(what),
            None => Ok(core::mem::take(&mut self.tally)),
        }
    }

    fn begin(&mut self) {
        let cold = self.dice.percent(20);
        if cold {
            let late = self.dice.around(3 * SECOND);
            self.agenda.put(self.now + late, Due::Boot);
        } else {
            self.boot(false);
        }
        for envoy in 0..self.envoys.len() {
            self.light(envoy);
        }
        self.agenda.put(self.now, Due::Arrive);
        let first = self.setting.fault_interval;
        let first = self.dice.around(first);
        self.agenda.put(self.now + first, Due::Fault);
    }

    /// Lets things happen until `enough`, or something doesn't hold. `until`: by then it must be enough.
    fn go_on(&mut self, enough: impl Fn(&Self) -> bool, until: Nanos) -> Result<(), String> {
        while !enough(self) {
            let Some((at, due)) = self.agenda.next() else {
                return Err("nothing happens any more".to_owned());
            };
            self.now = at;
            if at > until && !enough(self) {
                self.check_rest();
                let why = self
                    .failure
                    .take()
                    .unwrap_or_else(|| "it doesn't come to rest".to_owned());
                self.note(|| why.clone());
                return Err(why);
            }
            self.tally.events += 1;
            self.happen(due);
            if let Some(what) = self.failure.take() {
                return Err(what);
            }
        }
        Ok(())
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Arrive => self.arrive(),
            Due::Body(http) => self.body_in(http),
            Due::Leave(client) => self.client_leaves(client),
            Due::Reply(http) => self.reply_out(http),
            Due::Attempt(http) => self.attempt(http),
            Due::Failed(http, why) => self.failed(http, why),
            Due::Job(job) => self.job_steps(job),
            Due::Idle(http) => self.idle(http),
            Due::Tick(root, timer) => self.ticked(root, timer),
            Due::Up(stream, what) => self.arrived_up(stream, what),
            Due::Down(stream, what) => self.arrived_down(stream, what),
            Due::Inbox(life) => self.companion_looks(life),
            Due::Timer(life, number) => self.companion_timer(life, number),
            Due::Boot => self.boot(false),
            Due::Quit(life) => self.quit_companion(life),
            Due::Thaw(life) => self.thaw_companion(life),
            Due::Revive(envoy, vm) => self.revive(envoy as usize, vm),
            Due::Relight(envoy) => self.light(envoy as usize),
            Due::Retire(root) => self.retire(root),
            Due::Fault => self.fault(),
            Due::Heal(fault) => self.heal(fault),
        }
    }

    /// A line of the trace, if there is one.
    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.traced {
            let line = line();
            if self.trace.len() >= TRACE {
                self.trace.pop_front();
            }
            let since = (self.now - START) / 1_000;
            self.trace.push_back(format!(
                "{:>6}.{:06} {line}",
                since / 1_000_000,
                since % 1_000_000
            ));
        }
    }
}
