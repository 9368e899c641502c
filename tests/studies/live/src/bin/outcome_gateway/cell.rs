//! A cell: traffic and a policy, measured in both worlds.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::Config;
use penstock_engine::input::{Band, Role};
use penstock_engine::units::Decimal;
use penstock_model::Targets;
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::{Placement, ServerSpec, Tenant};
use penstock_simulate::goal::Goal;
use penstock_simulate::scenarios::{Kind, traffic};
use penstock_simulate::simulation::{Simulation, capacity};
use penstock_tests::gateway::{config, slots};
use penstock_tests::{Gateway, Mock, mock};
use serde_json::{Value, json};

use crate::{figures, real};

/// Traffic and a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    name: &'static str,
    scenario: Kind,
    discipline: &'static str,
    /// Requests in flight at each server; `None`: the gate of the learned model.
    limit: Option<u32>,
    /// Before this time nothing counts.
    warmup: Duration,
    measured: Duration,
}

/// All cells.
pub(crate) const CELLS: [Cell; 3] = [
    Cell {
        name: "80 % of the capacity, wfq, 16 a server",
        scenario: Kind::Steady,
        discipline: "wfq",
        limit: Some(16),
        warmup: Duration::from_secs(20),
        measured: Duration::from_secs(80),
    },
    Cell {
        name: "195 % of the capacity, fifo, 16 a server",
        scenario: Kind::Greedy,
        discipline: "fifo",
        limit: Some(16),
        warmup: Duration::from_secs(20),
        measured: Duration::from_secs(80),
    },
    Cell {
        name: "195 % of the capacity, wfq, auto",
        scenario: Kind::Greedy,
        discipline: "wfq",
        limit: None,
        warmup: Duration::from_secs(120),
        measured: Duration::from_secs(80),
    },
];

/// The servers, which are slow enough for a small machine to simulate in real time.
const SERVERS: usize = 2;
const HARDWARE: mock::Hardware = mock::Hardware { alpha: 12.0, beta: 0.1, gamma: 0.001, noise: 0.0 };
/// The targets of every request.
const TARGETS: Targets = Targets { ttft_ms: Some(2_000.0), itl_ms: Some(50.0) };
const GOAL: Goal = Goal::Targets(TARGETS);

impl Cell {
    /// Sends the same requests to a real gateway and to the simulator.
    pub(crate) async fn measure(&self) -> Value {
        let mocks: Vec<Mock> =
            futures_util::future::join_all((1..=SERVERS as u64).map(|seed| Mock::start(HARDWARE, seed)))
                .await;
        let text = self.config(&mocks);
        let simulation = self.simulation(&text);
        let gateway = Gateway::start(&text).await;
        let record = real::send(&gateway, &simulation).await;
        drop((gateway, mocks));
        let simulated = simulation.record(|_| {}).expect("the hardware is valid");
        let end = self.warmup + self.measured;
        json!({
            "cell": self.name,
            "requests": simulation.requests.len(),
            "simulated": figures::figures(&simulation, &simulated, &GOAL, end),
            "real": figures::figures(&simulation, &record, &GOAL, end),
        })
    }

    fn config(&self, mocks: &[Mock]) -> String {
        let addresses: Vec<String> = mocks.iter().map(|mock| format!("'{}'", mock.address())).collect();
        let stock = self.limit.map_or_else(|| "  stock: {watermark_per_backend: auto}\n".to_owned(), slots);
        let pool = format!(
            "- name: chat\n  endpoints: {{static: [{}]}}\n{stock}  queue: {{ttl: 1500ms}}\n  \
             arbitration: {{flows: {{discipline: {}}}}}\n  slo: {{target_ttft: 2s, target_itl: 50ms}}\n  model: {{transient: 1s}}\n",
            addresses.join(", "),
            self.discipline
        );
        config("", &[pool])
    }

    fn simulation(&self, text: &str) -> Simulation {
        let config = Config::parse(text, "penstock.yaml").expect("the configuration is valid");
        let pool = config.pools.into_iter().next().expect("the configuration has a pool");
        let server = ServerSpec {
            variant: "default".into(),
            hardware: Hardware {
                alpha_ms: HARDWARE.alpha,
                beta_ms: HARDWARE.beta,
                gamma_ms: HARDWARE.gamma,
                ..Hardware::default()
            },
            weight: Decimal::whole(1),
            request_noise: 0.0,
            role: Role::Both,
        };
        let servers = vec![server; SERVERS];
        let rate = |mix: &_| capacity(&servers, mix, &GOAL);
        let traffic = traffic(self.scenario, self.warmup + self.measured, 1.0, 1, rate)
            .expect("there are few requests");
        let tenants = traffic.tenants.into_iter().map(|name: Arc<str>| Tenant {
            flow: name.clone(),
            name,
            band: Band::Default,
        });
        Simulation {
            policy: pool.policy,
            slo: pool.slo,
            transient: pool.transient,
            placement: Placement::Engine,
            requests: traffic.requests.into(),
            tenants: tenants.collect(),
            warmup: self.warmup,
            servers,
            seed: 1,
        }
    }
}
