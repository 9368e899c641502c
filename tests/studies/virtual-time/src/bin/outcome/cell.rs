//! A cell of the comparison: a workload at a load, in front of servers.

use std::sync::Arc;
use std::time::Duration;

use penstock_model::{Traffic, sizing};
use penstock_simulate::closed_loop::{Planned, ServerSpec, parameters};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::servers::{Fleet, TARGETS};
use crate::tenants;
use crate::workloads::{ALTERNATION, Shape, Workload};

/// Offered load as a multiple of the servers' capacity.
const LOADS: [f64; 4] = [0.5, 0.9, 1.2, 2.0];
/// In this time the autopilot learns the servers' parameters, and nothing counts.
pub(crate) const WARMUP: Duration = Duration::from_mins(5);
/// The time that counts.
pub(crate) const MEASURED: Duration = Duration::from_mins(20);

/// A workload at a load, in front of servers.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) workload: &'static str,
    pub(crate) fleet: Fleet,
    pub(crate) load: f64,
    pub(crate) servers: Vec<ServerSpec>,
    /// Mean requests per second within the targets that the servers can serve, by the closed form; for the alternating workload, of the two
    /// kinds in turn.
    pub(crate) capacity: f64,
    /// Arrivals of the warm-up and of the time that counts.
    pub(crate) requests: Arc<[Planned]>,
}

/// All cells.
pub(crate) fn all(workloads: &[Workload]) -> Vec<Cell> {
    let of_workload = |workload: &Workload| {
        let fleets = Fleet::ALL.into_iter();
        let cells = fleets.flat_map(|fleet| LOADS.map(|load| Cell::new(workload, fleet, load)));
        cells.collect::<Vec<_>>()
    };
    workloads.iter().flat_map(of_workload).collect()
}

impl Cell {
    fn new(workload: &Workload, fleet: Fleet, load: f64) -> Self {
        let servers = fleet.servers();
        let end = WARMUP + MEASURED;
        let (mut requests, capacity) = match &workload.shape {
            Shape::Steady(listed) => {
                let capacity = capacity(&servers, listed);
                (scaled(listed, load * capacity, end), capacity)
            }
            Shape::Alternating(kinds) => {
                let capacities = kinds.each_ref().map(|kind| capacity(&servers, kind));
                let scaled = [0, 1].map(|kind| scaled(&kinds[kind], load * capacities[kind], end));
                let mean = capacities.iter().sum::<f64>() / 2.0;
                (alternate(&scaled), mean)
            }
        };
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for request in &mut requests {
            request.tenant = tenants::draw(&mut rng);
        }
        Self { workload: workload.name, fleet, load, servers, capacity, requests: requests.into() }
    }

    pub(crate) fn name(&self) -> String {
        format!("{}, {}, {} times the capacity", self.workload, self.fleet.name(), self.load)
    }
}

/// Requests per second of the mean request that the servers can serve within the targets, by the closed form.
fn capacity(servers: &[ServerSpec], requests: &[Planned]) -> f64 {
    let mean = |size: fn(&Planned) -> u64| {
        requests.iter().map(|request| size(request) as f64).sum::<f64>() / requests.len() as f64
    };
    let traffic =
        Traffic { rate: 0.0, input: mean(|request| request.input), output: mean(|request| request.output) };
    let rate = |server: &ServerSpec| {
        let requests_max = Some(server.hardware.seqs_max as f64);
        sizing::size(&parameters(&server.hardware), &traffic, &TARGETS, requests_max, 1.0).lambda_star
    };
    servers.iter().map(rate).sum()
}

/// The requests at this rate, again from the first when all have arrived, up to `end`.
fn scaled(requests: &[Planned], rate: f64, end: Duration) -> Vec<Planned> {
    let length = requests.last().map_or(Duration::ZERO, |last| last.at).as_secs_f64();
    let times = requests.len() as f64 / length / rate;
    let rounds = (0_u32..).map(|round| f64::from(round) * length);
    let arrivals = rounds.flat_map(|begin| {
        requests.iter().map(move |request| Planned {
            at: Duration::from_secs_f64((begin + request.at.as_secs_f64()) * times),
            ..*request
        })
    });
    arrivals.take_while(|request| request.at < end).collect()
}

/// Takes the requests of the first kind in one part of the time, and those of the second kind in the next one.
fn alternate(kinds: &[Vec<Planned>; 2]) -> Vec<Planned> {
    let part = |request: &&Planned| request.at.as_nanos() / ALTERNATION.as_nanos() % 2;
    let first = kinds[0].iter().filter(|request| part(request) == 0);
    let second = kinds[1].iter().filter(|request| part(request) == 1);
    let mut requests: Vec<Planned> = first.chain(second).copied().collect();
    requests.sort_by_key(|request| request.at);
    requests
}
