//! The cost of Penstock per request, compared with plain Envoy, a wasm filter that does nothing, one that only reads, one that makes a
//! unary call, and Envoy's external processor.
//! `just bench gateway [--rounds N] [--seconds N] [--idle N] [--rate N] [--only NAME,...] [--peer-binary epp=PATH,sim=PATH]
//! [--keep DIR]`.
//!
//! With `epp`, an endpoint picker of another project is one more subject. With `sim`, llm-d's simulator is the model server of all
//! subjects.
//!
//! All subjects are measured in one run, in rounds with rotating order, so that disturbances affect all of them alike. Each figure is the
//! median over the rounds, with minimum and maximum. Envoy has one worker on one core; clients, model server, companion and called
//! servers share the others. The model server's work is minimal, so the figures show the gateway. An error answer ends the run, because
//! errors would falsify the figures.

mod body;
mod bootstrap;
mod closed;
mod companion;
mod cores;
mod events;
mod flood;
mod instructions;
mod model_server;
mod open;
mod options;
mod paused;
mod plot;
mod report;
mod side;
mod subject;
mod tables;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_live_studies::peers::{Programs, Simulator};
use penstock_studies::figures::machine;
use penstock_tests::process::raise_open_files;
use penstock_tests::run;
use serde_json::{Value, json};

use crate::cores::REST;
use crate::options::{Plan, Row};
use crate::report::Measured;
use crate::side::{Kind, Side};
use crate::subject::{CONNECTIONS, Cpu, Subject, Under, Which};

/// The figures of one subject in one round, by name.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [side, kind] = arguments.as_slice()
        && side == "--side"
        && let Some(kind) = Kind::called(kind)
    {
        side::be(kind);
        return ExitCode::SUCCESS;
    }
    let plan = Plan::read(&arguments).and_then(|plan| {
        closed::installed()?;
        if plan.has(Row::Open) {
            open::installed()?;
        }
        if plan.has(Row::Instructions) {
            instructions::installed()?;
        }
        Ok(plan)
    });
    let plan = match plan {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    // Build before setting the affinity, so that the build uses all cores.
    if plan.needs_penstock() {
        penstock_tests::binary::penstock();
    }
    for which in &plan.subjects {
        which.example().map(bootstrap::module);
    }
    let machine = machine();
    REST.stay();
    raise_open_files();
    run(measure(&plan, machine));
    ExitCode::SUCCESS
}

async fn measure(plan: &Plan, machine: String) {
    let server = ModelServer::start(&plan.programs).await;
    let mut subjects = Vec::new();
    for which in plan.subjects.iter().filter(|_| plan.has_rounds()) {
        subjects.push(which.start(server.address(), &plan.programs, Under::Nothing).await);
    }
    for subject in &subjects {
        closed::run(&subject.url(), body::SHORT, CONNECTIONS, 1).await;
    }
    let mut rounds: Vec<Vec<Figures>> = plan.subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        for turn in 0..subjects.len() {
            let index = (round + turn) % subjects.len();
            let figures = turn_of(&subjects[index], plan).await;
            println!(
                "round {}/{}: {}",
                round + 1,
                plan.rounds,
                report::line(subjects[index].which.name(), &figures)
            );
            rounds[index].push(figures);
        }
    }
    drop(subjects);
    report::write(&Measured {
        plan,
        machine,
        rounds,
        paused: if plan.has(Row::Paused) { paused::run(server.address()).await } else { Value::Null },
        companion: if plan.has(Row::Companion) { companion::run(plan.seconds).await } else { Value::Null },
        instructions: if plan.has(Row::Instructions) {
            instructions::run(plan, server.address()).await
        } else {
            Value::Null
        },
        flood: if plan.has(Row::Flood) { flood::run(plan).await } else { Value::Null },
        idle: if plan.has(Row::Idle) { idle(server.address(), plan.idle_s).await } else { Value::Null },
    });
}

/// The model server of all subjects.
enum ModelServer {
    Own(Side),
    Simulator(Simulator),
}

impl ModelServer {
    async fn start(programs: &Programs) -> Self {
        match &programs.simulator {
            Some(program) => {
                Self::Simulator(Simulator::start(program, body::MODEL, |command| REST.hold(command)).await)
            }
            None => Self::Own(Side::start(Kind::Model).await),
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Own(side) => side.address,
            Self::Simulator(simulator) => simulator.address,
        }
    }
}

/// CPU of idle gateways, in percent of one core.
async fn idle(server: SocketAddr, seconds: u32) -> Value {
    let mut idle = idle_with(Which::Penstock, server, seconds).await;
    let replicas = idle_with(Which::Replicas, server, seconds).await;
    idle["leader"] = replicas["companion"].clone();
    idle["standby"] = replicas["standby"].clone();
    println!("idle, percent of a core: {idle}");
    idle
}

async fn idle_with(which: Which, server: SocketAddr, seconds: u32) -> Value {
    println!("{}, idle for {seconds} s ...", which.name());
    let subject = which.start(server, &Programs::default(), Under::Nothing).await;
    let (before, start) = (subject.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let (used, wall_us) = (subject.cpu().since(before), start.elapsed().as_secs_f64() * 1e6);
    let percent = |us: f64| (us / wall_us * 100_000.0).round() / 1_000.0;
    json!({
        "companion": percent(used.side_us),
        "envoy": percent(used.envoy_us),
        "standby": percent(used.standby_us),
    })
}

/// Measures one subject in one round.
async fn turn_of(subject: &Subject, plan: &Plan) -> Figures {
    let mut figures = Figures::new();
    if plan.has(Row::Many) {
        let before = subject.admitted().await;
        let (load, cpu) = loaded(subject, body::SHORT, plan.seconds).await;
        if let (Some(before), Some(after)) = (before, subject.admitted().await) {
            let waited = after.waited - before.waited;
            let leased = after.leased - before.leased;
            let all = waited + leased + after.bypassed - before.bypassed;
            figures.insert("waited_percent", 100.0 * waited / all);
            figures.insert("leased_percent", 100.0 * leased / all);
        }
        figures.insert("requests_per_s", load.rate());
        figures.insert("p50_us", load.p50_us);
        figures.insert("p99_us", load.p99_us);
        figures.insert("envoy_cpu_us", cpu.envoy_us / load.requests);
        figures.insert("side_cpu_us", cpu.side_us / load.requests);
        figures.insert("cpu_us", (cpu.envoy_us + cpu.side_us) / load.requests);
        if subject.standby.is_some() {
            figures.insert("standby_cpu_us", cpu.standby_us / load.requests);
        }
    }
    // With one connection no request can wait, and at a fixed rate none waits for long.
    let waits = subject.which == Which::Queued;
    if plan.has(Row::One) && !waits {
        let load = closed::run(&subject.url(), body::SHORT, 1, plan.seconds.div_ceil(2)).await;
        figures.insert("p50_us_at_1", load.p50_us);
        figures.insert("p99_us_at_1", load.p99_us);
    }
    if plan.has(Row::Long) {
        let (load, cpu) = loaded(subject, body::LONG, plan.seconds.div_ceil(2)).await;
        figures.insert("requests_per_s_220kb", load.rate());
        figures.insert("p50_us_220kb", load.p50_us);
        figures.insert("p99_us_220kb", load.p99_us);
        figures.insert("envoy_cpu_us_220kb", cpu.envoy_us / load.requests);
        figures.insert("side_cpu_us_220kb", cpu.side_us / load.requests);
    }
    if plan.has(Row::Open) && !waits {
        let times = open::run(&subject.url(), plan.rate, plan.seconds).await;
        figures.insert("open_p50_us", times.p50_us);
        figures.insert("open_p99_us", times.p99_us);
    }
    if plan.has(Row::Events) && !waits {
        let (events, cpu) = events::run(subject, plan.seconds.div_ceil(2)).await;
        figures.insert("envoy_cpu_us_per_event", cpu.envoy_us / events);
        figures.insert("side_cpu_us_per_event", cpu.side_us / events);
    }
    figures
}

/// A closed loop over many connections, and its CPU.
async fn loaded(subject: &Subject, bytes: usize, seconds: u32) -> (closed::Load, Cpu) {
    let before = subject.cpu();
    let load = closed::run(&subject.url(), bytes, CONNECTIONS, seconds).await;
    (load, subject.cpu().since(before))
}
