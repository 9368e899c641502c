//! The demand from which replicas follow: what more servers could serve, and nothing that a policy keeps from them.

use core::time::Duration;

use penstock_autopilot::Kept;
use penstock_control::Settings;
use penstock_engine::Outcome;
use penstock_engine::policy::{
    Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Gate, Over, Policy,
};
use penstock_engine::units::Decimal;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Targets};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Requests a second of a tenant that the policy limits. The other tenant sends one.
const FLOOD: u64 = 50;

/// Two servers of known parameters, which serve a few requests a second each.
fn settings_with(change: impl FnOnce(&mut Policy)) -> Settings {
    let mut settings = settings_of(&[SERVER, SECOND]);
    let pool = &mut settings.pools[0];
    pool.slo = SloPolicy {
        explicit: Some(Targets { ttft_ms: Some(1_000.0), itl_ms: Some(20.0) }),
        ..SloPolicy::default()
    };
    let parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 };
    let kept = Kept { parameters, ttft_bias: 1.0 };
    pool.kept = vec![("default".into(), kept)];
    let bound = Decimal::whole(50);
    pool.policy.gate = Gate::requests(bound);
    pool.policy.queue.total_capacity = 100_000;
    pool.policy.queue.total_bytes = 1 << 40;
    pool.policy.queue.flow_capacity = 100_000;
    pool.policy.queue.ttl = Duration::from_secs(30);
    change(&mut pool.policy);
    settings
}

/// A budget of one request an hour for the tenant `flood`.
fn budget(over: Over) -> Vec<Budget> {
    vec![Budget {
        flows: FlowGlob::new("flood"),
        windows: vec![BudgetWindow {
            unit: CostUnit::Requests,
            limit: 1,
            period: BudgetPeriod::Sliding(Duration::from_secs(3_600)),
        }],
        calendar: BudgetCalendar::default(),
        over,
        shadow: false,
    }]
}

struct Traffic {
    world: World,
    sequence: u64,
    outcomes: Vec<Outcome>,
}

impl Traffic {
    fn new(settings: Settings) -> Self {
        let mut world = World::with(settings);
        world.greet(1, filter(1), Vec::new(), Vec::new());
        world.take();
        Self { world, sequence: 0, outcomes: Vec::new() }
    }

    fn ask(&mut self, tenant: &str) {
        self.sequence += 1;
        self.world.send(
            1,
            Message::Register(wire::Register { fairness_id: tenant.into(), ..register(self.sequence) }),
        );
    }

    /// Everything that was granted is served at once.
    fn serve(&mut self) {
        loop {
            let taken = self.world.take();
            self.outcomes.extend(&taken.outcomes);
            let granted = taken.granted();
            if granted.is_empty() {
                return;
            }
            for sequence in granted {
                let Message::Completed(completed) = completed(sequence) else {
                    panic!("a completion");
                };
                let long = wire::Completed { output_tokens: Some(500), ..completed };
                self.world.send(1, Message::Completed(long));
            }
        }
    }

    /// Seconds in which `acme` sends one request and `flood` sends `flood`.
    fn pass(&mut self, seconds: u64, flood: u64) {
        for _ in 0..seconds {
            self.ask("acme");
            (0..flood).for_each(|_| self.ask("flood"));
            self.serve();
            self.world.pass_beating(1, &[1]);
            self.serve();
        }
    }

    /// Offered requests per second, and the replicas that they need.
    fn demand(&self) -> (f64, u64) {
        let pool = self.world.control.status(self.world.now).pools.swap_remove(0);
        let model = pool.model.expect("its servers are known");
        let desired = model.variants[0].desired.expect("it is sized");
        (model.demand, desired.replicas)
    }
}

/// Demand and replicas under a policy, with and without the flood.
fn demands(change: impl Fn(&mut Policy)) -> [(f64, u64); 2] {
    [0, FLOOD].map(|flood| {
        let mut traffic = Traffic::new(settings_with(&change));
        traffic.pass(50, flood);
        traffic.demand()
    })
}

fn assert_equal(demands: [(f64, u64); 2]) {
    let [(without, fewer), (with, more)] = demands;
    assert!((with - without).abs() < 0.15 * without, "{demands:?}");
    assert_eq!(fewer, more, "{demands:?}");
}

#[test]
fn a_flood_within_all_limits_is_demand() {
    let [(without, fewer), (with, more)] = demands(|_| ());
    assert!((with - without - FLOOD as f64).abs() < 1.0, "{with} {without}");
    assert!(more > fewer);
}

#[test]
fn what_a_budget_refuses_is_no_demand() {
    assert_equal(demands(|policy| policy.flows.budgets = budget(Over::Refuse)));
}

#[test]
fn what_a_budget_holds_is_no_demand() {
    assert_equal(demands(|policy| policy.flows.budgets = budget(Over::Hold)));
    // The queue of the held tenant fills up, and then the rest is refused.
    assert_equal(demands(|policy| {
        policy.flows.budgets = budget(Over::Hold);
        policy.queue.flow_capacity = 100;
    }));
}

#[test]
fn held_work_is_demand_when_there_is_room_in_its_budget() {
    let mut traffic = Traffic::new(settings_with(|policy| {
        policy.flows.budgets = budget(Over::Hold);
        policy.flows.budgets[0].windows[0].period = BudgetPeriod::Sliding(Duration::from_secs(24));
        policy.flows.budgets[0].windows[0].limit = 100;
        policy.queue.ttl = Duration::from_secs(1_000);
    }));
    traffic.pass(1, 100);
    traffic.pass(1, 100);
    traffic.pass(8, 0);
    let (first, _) = traffic.demand();
    assert!((first - 11.0).abs() < 0.5, "only what went in the first window: {first}");
    traffic.pass(10, 0);
    let (held, _) = traffic.demand();
    assert!((held - 1.0).abs() < 0.5, "the rest waits for its budget: {held}");
    traffic.pass(10, 0);
    let (released, _) = traffic.demand();
    assert!((released - 11.0).abs() < 0.5, "now it can run: {released}");
}

#[test]
fn what_a_budget_demotes_is_demand() {
    let [(without, fewer), (with, more)] = demands(|policy| policy.flows.budgets = budget(Over::Demote));
    assert!((with - without - FLOOD as f64).abs() < 1.0, "{with} {without}");
    assert!(more > fewer);
}

#[test]
fn what_its_own_limit_keeps_from_running_is_no_demand() {
    let demand = |max_in_flight| {
        let mut traffic = Traffic::new(settings_with(|policy| {
            policy.flows.max_in_flight = max_in_flight;
            policy.queue.flow_capacity = 100;
        }));
        // One request of the tenant runs all the time.
        traffic.ask("flood");
        traffic.world.take();
        traffic.pass(50, FLOOD);
        traffic.demand().0
    };
    assert!((demand(Some(1)) - 1.0).abs() < 0.2, "{}", demand(Some(1)));
    assert!(demand(None) > FLOOD as f64);
}

#[test]
fn requests_that_wait_for_servers_are_demand_whatever_becomes_of_them() {
    // Each server is busy with one request that doesn't end, so everything else waits, expires, or finds its queue full.
    for flow_capacity in [100_000, 10] {
        let mut traffic = Traffic::new(settings_with(|policy| {
            policy.queue.flow_capacity = flow_capacity;
            policy.queue.ttl = Duration::from_secs(12);
        }));
        (0..100).for_each(|_| traffic.ask("other"));
        assert_eq!(traffic.world.take().granted().len(), 100);
        traffic.pass(50, FLOOD);
        let model = traffic.world.control.status(traffic.world.now).pools.swap_remove(0).model;
        let demand = model.expect("its servers are known").demand;
        assert!(demand > FLOOD as f64, "{demand}");
        let refused = traffic.outcomes.contains(&Outcome::RejectedFlowCapacity);
        assert_eq!(refused, flow_capacity == 10);
    }
}

#[test]
fn the_demand_is_at_most_the_rate_at_which_the_pool_may_grant() {
    let [(without, _), (with, _)] = demands(|policy| policy.queue.max_rate = Some(4.0));
    assert!((with - 4.0).abs() < 1e-9 && (without - 1.0).abs() < 0.2, "{with} {without}");
}

#[test]
fn a_request_for_servers_that_are_not_there_is_no_demand() {
    let mut traffic = Traffic::new(settings_with(|_| ()));
    for _ in 0..50 {
        for _ in 0..FLOOD {
            traffic.sequence += 1;
            let pinned = wire::Register { pin: "127.0.0.1:1".into(), ..register(traffic.sequence) };
            traffic.world.send(1, Message::Register(pinned));
        }
        traffic.pass(1, 0);
    }
    assert!(traffic.outcomes.contains(&Outcome::NoEndpoints));
    assert!((traffic.demand().0 - 1.0).abs() < 0.2, "{:?}", traffic.demand());
}
