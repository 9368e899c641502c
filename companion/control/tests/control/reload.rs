//! Another configuration while requests wait and run: nothing is lost, nothing changes its place, and what is gone is
//! gone when its last request has ended.

use std::time::Duration;

use penstock_control::{Event, FlowKey, PoolSettings, Settings};
use penstock_engine::Outcome;
use penstock_engine::input::Band;
use penstock_engine::policy::{Class, ClassSet, Discipline, Gate, Order, StockUnit};
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Said;

use crate::harness::*;

fn world(servers: &[&str]) -> World {
    let mut world = World::with(settings_of(servers));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

/// The first runs, the others wait.
fn with_waiting(servers: &[&str], sequences: std::ops::RangeInclusive<u64>) -> World {
    let mut world = world(servers);
    for sequence in sequences {
        world.say(1, Said::Register(register(sequence)));
    }
    world.take();
    world
}

fn reload(world: &mut World, settings: Settings) -> Taken {
    world.handle(Event::Settings(Box::new(settings)));
    world.take()
}

fn endpoints(world: &mut World, servers: &[&str]) -> Taken {
    let endpoints = settings_of(servers).pools.remove(0).endpoints;
    world.handle(Event::Endpoints {
        pool: "chat".into(),
        endpoints,
    });
    world.take()
}

fn pool(name: &str, models: &[&str], servers: &[&str]) -> PoolSettings {
    PoolSettings {
        name: name.into(),
        models: models.iter().map(ToString::to_string).collect(),
        ..settings_of(servers).pools.remove(0)
    }
}

/// In which order the rest goes, one at a time.
fn order(world: &mut World, first: u64, server: &str) -> Vec<u64> {
    let (mut order, mut runs) = (Vec::new(), first);
    loop {
        world.say(1, completed_at(runs, server));
        let granted = world.take().granted();
        let [next] = granted[..] else { return order };
        order.push(next);
        runs = next;
    }
}

#[test]
fn the_same_again_changes_nothing() {
    let mut world = with_waiting(&[SERVER], 1..=4);
    assert_eq!(reload(&mut world, settings()), Taken::default());
    assert_eq!(order(&mut world, 1, SERVER), [2, 3, 4]);
}

#[test]
fn every_session_is_told_another_policy_once() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.greet(2, filter(5), Vec::new(), Vec::new());
    world.take();
    let mut settings = settings();
    settings.policy.digest = "d2".into();
    let taken = reload(&mut world, settings.clone());
    let told = |conn| (conn, Kind::Policy(settings.policy.clone()));
    assert_eq!(taken.commands, [told(1), told(2)]);
    assert_eq!(reload(&mut world, settings.clone()), Taken::default());
    // Who comes later is greeted with it.
    world.greet(3, filter(6), Vec::new(), Vec::new());
    assert!(world.take().commands.contains(&told(3)));
}

#[test]
fn what_waits_keeps_its_place_whatever_the_rules_become() {
    for discipline in Discipline::ALL {
        let mut world = with_waiting(&[SERVER], 1..=8);
        let mut other = settings();
        other.policy.digest = format!("{discipline:?}");
        let rules = &mut other.pools[0].policy;
        rules.flows.discipline = discipline;
        rules.queue.total_capacity = 2;
        rules.queue.flow_capacity = 1;
        rules.queue.enabled = false;
        rules.per_model = true;
        rules.order = Order::Edf;
        let mut class = Class::new("all", 100);
        class.requests_per_endpoint = Some(1);
        rules.classes = vec![ClassSet {
            default_family: None,
            buckets: Vec::new(),
            classes: vec![class],
        }];
        other.pools[0].flow_key = vec![FlowKey::User, FlowKey::TargetModel];
        other.pools[0].class_globs = vec!["llama-*".into()];
        let taken = reload(&mut world, other);
        assert_eq!((taken.granted(), taken.outcomes.len()), (vec![], 0));
        assert_eq!(world.waiting(), 7, "{discipline:?}");
        assert_eq!(
            order(&mut world, 1, SERVER),
            [2, 3, 4, 5, 6, 7, 8],
            "{discipline:?}"
        );
        assert!(world.control.is_idle());
    }
}

#[test]
fn a_wider_gate_lets_go_at_once_and_a_narrower_one_waits() {
    let gate = |bound| Gate::Bounded {
        unit: StockUnit::Requests,
        lower: Decimal::whole(bound),
        upper: Decimal::whole(bound),
        watermark: Decimal::whole(bound),
    };
    let mut world = with_waiting(&[SERVER], 1..=5);
    let mut wider = settings();
    wider.pools[0].policy.gate = gate(3);
    let taken = reload(&mut world, wider);
    assert_eq!(taken.granted(), [2, 3]);
    // The filters share another bound from then on.
    assert_eq!(taken.endpoints()[0].1.fallback_bound, Some(3));
    assert_eq!(reload(&mut world, settings()).granted(), [0; 0]);
    for (sequence, next) in [(1, vec![]), (2, vec![]), (3, vec![4]), (4, vec![5])] {
        world.say(1, completed(sequence));
        assert_eq!(world.take().granted(), next, "after {sequence}");
    }
}

#[test]
fn another_ttl_counts_for_what_waits() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut shorter = settings();
    shorter.pools[0].policy.queue.ttl = Duration::from_secs(3);
    world.pass_beating(2, &[1]);
    reload(&mut world, shorter);
    world.pass(Duration::from_millis(999));
    assert_eq!(world.waiting(), 1);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.take().rejected(), [(2, "queue_timeout", 503)]);
}

#[test]
fn an_endpoint_that_goes_gets_nothing_more_and_what_runs_there_ends() {
    let mut world = with_waiting(&[SERVER, SECOND], 1..=4);
    let taken = endpoints(&mut world, &[SECOND, THIRD]);
    // The third is new, and takes one; the first has what it had.
    let granted = taken.grants();
    assert_eq!((granted.len(), granted[0].1.endpoints[0].as_str()), (1, THIRD));
    assert_eq!(taken.endpoints()[0].1.ready, [SECOND, THIRD]);
    let snapshot = |world: &World| world.control.status(world.now).pools[0].snapshot.clone();
    assert_eq!((snapshot(&world).stock, snapshot(&world).draining_stock), (2, 1));
    let at = |server: &str| {
        let status = world.control.status(world.now);
        let pool = &status.pools[0];
        let of = pool
            .snapshot
            .endpoints
            .iter()
            .find(|it| pool.address(it.id) == server);
        of.map(|it| it.id)
    };
    assert!(at(SERVER).is_some(), "it is shown while something runs there");
    // Whichever of the two ran there.
    let status = world.control.status(world.now);
    assert_eq!(status.pools[0].addresses.len(), 3);
    for sequence in [1, 2] {
        world.say(
            1,
            started(sequence, if sequence == 1 { SERVER } else { SECOND }, 1),
        );
    }
    world.take();
    world.say(1, completed_at(1, SERVER));
    assert_eq!(
        world.take().granted(),
        [0; 0],
        "the place is gone with its server"
    );
    assert_eq!(snapshot(&world).draining_stock, 0);
    assert_eq!(order(&mut world, 2, SECOND), [4]);
}

#[test]
fn a_number_is_given_again_when_nobody_knows_it() {
    let mut world = world(&[SERVER, SECOND]);
    for round in 0..100 {
        let address = format!("10.0.0.1:{round}");
        endpoints(&mut world, &[SERVER, &address]);
    }
    let status = world.control.status(world.now);
    let addresses: Vec<&str> = status.pools[0].addresses.iter().map(|it| &**it).collect();
    assert!(addresses.len() <= 3, "{addresses:?}");
    assert!(addresses.contains(&"10.0.0.1:99") && addresses.contains(&SERVER));
}

#[test]
fn one_that_stays_keeps_its_health_and_a_new_one_says_its_own() {
    let mut world = world(&[SERVER, SECOND]);
    world.handle(Event::EndpointReady {
        pool: "chat".into(),
        address: SECOND.into(),
        ready: false,
    });
    world.take();
    let mut checked = settings_of(&[SERVER, SECOND, THIRD]);
    for endpoint in &mut checked.pools[0].endpoints {
        endpoint.ready = false;
    }
    assert_eq!(
        reload(&mut world, checked),
        Taken::default(),
        "only the first is ready"
    );
    world.handle(Event::EndpointReady {
        pool: "chat".into(),
        address: THIRD.into(),
        ready: true,
    });
    assert_eq!(world.take().endpoints()[0].1.ready, [SERVER, THIRD]);
    // Nothing checks any more.
    let taken = reload(&mut world, settings_of(&[SERVER, SECOND, THIRD]));
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER, SECOND, THIRD]);
}

#[test]
fn a_grant_whose_endpoint_is_gone_is_taken_back() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.close(1);
    endpoints(&mut world, &[SECOND]);
    let again = Filter {
        stream: 2,
        ..filter(1)
    };
    world.greet(2, again, vec![register(1), register(2)], Vec::new());
    let taken = world.take();
    assert_eq!(
        (taken.granted(), taken.requeued),
        (vec![1], 1),
        "in its old place"
    );
    assert_eq!(taken.grants()[0].1.endpoints, [SECOND]);
}

#[test]
fn with_no_endpoint_left_it_waits_for_one() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    assert_eq!(endpoints(&mut world, &[]).endpoints()[0].1.ready.len(), 0);
    world.pass_beating(10, &[1]);
    assert_eq!(world.waiting(), 1);
    let taken = endpoints(&mut world, &[THIRD]);
    assert_eq!(taken.grants()[0].1.endpoints, [THIRD]);
    // The one that ran there is still there.
    world.say(1, completed(1));
    world.say(1, completed_at(2, THIRD));
    assert!(world.control.is_idle());
}

#[test]
fn a_removed_endpoint_is_announced_where_no_bound_changes() {
    let mut settings = settings_of(&[SERVER, SECOND]);
    settings.pools[0].policy.gate = Gate::Open;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    let taken = endpoints(&mut world, &[SERVER]);
    assert_eq!(taken.endpoints()[0].1.ready, [SERVER]);
}

#[test]
fn endpoints_of_nobody_are_nobodys() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    world.handle(Event::Endpoints {
        pool: "nobody".into(),
        endpoints: Vec::new(),
    });
    assert_eq!(world.take(), Taken::default());
}

#[test]
fn what_waits_in_a_pool_that_is_gone_is_refused_and_what_runs_ends() {
    let mut world = with_waiting(&[SERVER], 1..=3);
    let mut other = settings();
    other.pools = vec![pool("code", &["code-*"], &[SECOND])];
    let taken = reload(&mut world, other.clone());
    let not_found = |sequence| (sequence, "model_not_found", 404);
    assert_eq!(taken.rejected(), [not_found(3), not_found(2)]);
    assert!(
        taken.rejects()[0].message.contains("`chat`"),
        "{}",
        taken.rejects()[0].message
    );
    assert_eq!(taken.outcomes, [Outcome::RejectedInvalid; 2]);
    let names = |world: &World| -> Vec<(String, bool, u64)> {
        let pools = world.control.status(world.now).pools;
        let names = pools.iter().map(|it| {
            (
                it.name.to_string(),
                it.retired,
                it.snapshot.stock + it.snapshot.draining_stock,
            )
        });
        names.collect()
    };
    assert_eq!(
        names(&world),
        [("code".into(), false, 0), ("chat".into(), true, 1)]
    );
    world.say(1, Said::Register(register(4)));
    assert_eq!(world.take().rejected(), [not_found(4)]);
    world.say(
        1,
        Said::Register(wire::Register {
            model: "code-1".into(),
            ..register(5)
        }),
    );
    assert_eq!(world.take().grants()[0].1.endpoints, [SECOND]);
    world.say(1, completed(1));
    assert_eq!(names(&world), [("code".into(), false, 1)]);
    world.say(1, completed_at(5, SECOND));
    assert!(world.control.is_idle());
}

#[test]
fn a_pool_named_again_goes_on_as_it_was() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let mut without = settings();
    without.pools = vec![pool("code", &["code-*"], &[SECOND])];
    reload(&mut world, without);
    let mut both = settings();
    both.pools = vec![
        pool("code", &["code-*"], &[SECOND]),
        pool("chat", &["llama-*"], &[SERVER]),
    ];
    reload(&mut world, both);
    world.say(1, Said::Register(register(2)));
    assert_eq!(world.take().granted(), [0; 0], "what ran there still does");
    world.say(1, completed(1));
    assert_eq!(world.take().granted(), [2]);
    assert_eq!(world.control.status(world.now).pools.len(), 2);
}

#[test]
fn a_request_of_a_retired_pool_that_no_server_took_is_refused() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let mut other = settings();
    other.pools = vec![pool("code", &["code-*"], &[SECOND])];
    reload(&mut world, other);
    world.say(1, Said::Register(again(2, 1, 1)));
    let taken = world.take();
    assert_eq!(
        (taken.rejected(), taken.requeued),
        (vec![(2, "model_not_found", 404)], 1)
    );
    assert!(taken.outcomes.is_empty(), "it keeps its first outcome");
    assert!(world.control.is_idle());
    assert_eq!(world.control.status(world.now).pools.len(), 1);
}

#[test]
fn a_model_that_a_pool_serves_no_more_is_refused_there() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut other = settings();
    other.pools[0].models = vec!["llama-70b".into()];
    assert_eq!(
        reload(&mut world, other.clone()).rejected(),
        [(2, "model_not_found", 404)]
    );
    // Another that comes before it takes what comes later, not what waits.
    let mut world = with_waiting(&[SERVER], 1..=2);
    let mut first = settings();
    first.pools.insert(0, pool("new", &["llama-8b"], &[SECOND]));
    assert!(reload(&mut world, first).outcomes.is_empty());
    world.say(1, Said::Register(register(3)));
    assert_eq!(world.take().grants()[0].1.pool, "new");
    world.say(1, completed(1));
    let taken = world.take();
    assert_eq!(
        (taken.granted(), taken.grants()[0].1.pool.as_str()),
        (vec![2], "chat")
    );
}

#[test]
fn a_new_pool_is_like_the_others() {
    // Before dispatch has begun it waits, too.
    let mut world = World::new();
    let mut both = settings();
    both.pools.push(pool("code", &["code-*"], &[SECOND]));
    reload(&mut world, both.clone());
    assert!(!world.control.status(world.now).started);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    let code = |sequence| {
        Said::Register(wire::Register {
            model: "code-1".into(),
            ..register(sequence)
        })
    };
    world.say(1, code(1));
    assert_eq!(world.take().granted(), [1]);
    // While all is refused it refuses.
    world.handle(Event::Drain(true));
    both.pools.push(pool("more", &["more-*"], &[THIRD]));
    reload(&mut world, both);
    world.say(
        1,
        Said::Register(wire::Register {
            model: "more-1".into(),
            ..register(2)
        }),
    );
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.handle(Event::Drain(false));
    world.say(
        1,
        Said::Register(wire::Register {
            model: "more-1".into(),
            ..register(3)
        }),
    );
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn fewer_expected_sessions_may_be_all() {
    let mut expecting = settings();
    expecting.sessions_expected = Some(2);
    let mut world = World::with(expecting);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().granted(), [0; 0]);
    assert_eq!(reload(&mut world, settings()).granted(), [1]);
}

#[test]
fn new_claims_count_for_those_that_come() {
    let mut world = with_waiting(&[SERVER], 1..=1);
    let gold = |sequence| {
        Said::Register(wire::Register {
            priority: "gold".into(),
            fairness_id: format!("t{sequence}"),
            ..register(sequence)
        })
    };
    world.say(1, gold(2));
    let mut objectives = settings();
    objectives.objectives = vec![("gold".into(), Band::Critical)];
    reload(&mut world, objectives);
    world.say(1, gold(3));
    let status = world.control.status(world.now);
    let bands = &status.pools[0].snapshot.bands;
    let waiting: Vec<u64> = bands.iter().map(|it| it.waiting).collect();
    assert_eq!(waiting, [1, 1, 0]);
    assert_eq!(order(&mut world, 1, SERVER), [3, 2]);
}

#[test]
fn flows_are_named_anew_and_those_that_wait_keep_theirs() {
    let mut world = with_waiting(&[SERVER], 1..=2);
    let shown = |world: &World| {
        let pool = world.control.status(world.now).pools.remove(0);
        let flows = pool.snapshot.flows.iter().map(|it| it.key.to_string());
        (flows.collect::<Vec<_>>(), pool.shown("acme").to_owned())
    };
    assert_eq!(shown(&world), (vec!["acme".to_owned()], "acme".to_owned()));
    let mut by_user = settings();
    by_user.pools[0].flow_key = vec![FlowKey::User];
    reload(&mut world, by_user);
    world.say(
        1,
        Said::Register(wire::Register {
            user: "joe".into(),
            ..register(3)
        }),
    );
    let (flows, acme) = shown(&world);
    assert_eq!(flows, ["acme", "joe"]);
    assert_eq!(acme, "other", "it may be a user's name by now");
}

#[test]
fn places_are_kept_over_many_reloads() {
    let mut world = with_waiting(&[SERVER], 1..=10);
    for number in 0..100_u64 {
        let mut other = settings();
        other.policy.digest = format!("d{number}");
        other.pools[0].policy.flows.default_weight = 1.0 + number as f64;
        other.pools[0].policy.flows.discipline = Discipline::ALL[usize::try_from(number % 6).expect("small")];
        if number.is_multiple_of(3) {
            other
                .pools
                .insert(0, pool(&format!("p{number}"), &["x"], &[SECOND]));
        }
        let taken = reload(&mut world, other);
        assert!(taken.outcomes.is_empty() && taken.grants().is_empty());
    }
    assert_eq!(order(&mut world, 1, SERVER), [2, 3, 4, 5, 6, 7, 8, 9, 10]);
}
