//! A restarted companion learns of one requeued request under several keys, in any order.

use penstock_control::Settings;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// The Hello of one of an Envoy's three filters.
#[derive(Clone)]
struct Leg {
    filter: u64,
    waiting: Vec<wire::Register>,
    running: Vec<wire::Running>,
}

/// A request of the first filter that was requeued at the second, and then at the third, where it waits or runs.
fn legs(last_runs: bool) -> Vec<Leg> {
    let second = again(2, 1, 1);
    let third = wire::Register { requeues: 2, age_us: 9_000_000, ..again(3, 2, 2) };
    let leg = |filter, waiting, running| Leg { filter, waiting, running };
    let last = if last_runs {
        leg(3, Vec::new(), vec![runs_as(third, SECOND)])
    } else {
        leg(3, vec![third], Vec::new())
    };
    vec![leg(1, Vec::new(), vec![runs(1)]), leg(2, Vec::new(), vec![runs_as(second, SERVER)]), last]
}

fn orders() -> Vec<[usize; 3]> {
    let mut orders = Vec::new();
    for a in 0..3 {
        for b in 0..3 {
            for c in 0..3 {
                if a != b && b != c && a != c {
                    orders.push([a, b, c]);
                }
            }
        }
    }
    orders
}

#[test]
fn keys_in_any_order_leave_one_request() {
    for last_runs in [false, true] {
        for order in orders() {
            let mut world =
                World::with(Settings { sessions_expected: Some(3), ..settings_of(&[SERVER, SECOND, THIRD]) });
            let legs = legs(last_runs);
            for index in order {
                let leg = legs[index].clone();
                world.greet(leg.filter, filter(leg.filter), leg.waiting, leg.running);
            }
            let taken = world.take();
            let granted = if last_runs { vec![] } else { vec![3] };
            assert_eq!(taken.granted(), granted, "{order:?}");
            assert_eq!((world.stock(), world.waiting()), (1, 0), "{order:?}");
            let (arrived, decided, refused) = taken.counts();
            assert_eq!((arrived, refused), (decided, 0), "{order:?}");
            // Only if the middle key comes last, the first key can't be recognised as the same request.
            let told_apart = order[2] == 1;
            assert_eq!(arrived, 1 + usize::from(told_apart), "{order:?}");
            world.send(3, completed_at(3, SECOND));
            for (conn, sequence) in [(2, 2), (1, 1)] {
                world.send(conn, completed_at(sequence, AGAIN));
            }
            assert_eq!(world.take().counts(), (0, 0, 0), "{order:?}");
            assert!(world.control.is_idle(), "{order:?}");
            let moved = world.control.status(world.now).sessions;
            assert!(moved.iter().all(|session| session.moved == 0), "{order:?}");
        }
    }
}

#[test]
fn all_keys_in_one_hello_are_one_request() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    let third = wire::Register { requeues: 2, ..again(3, 1, 2) };
    let running = vec![runs(1), runs_as(again(2, 1, 1), SERVER)];
    world.greet(1, filter(1), vec![third], running);
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![3], (1, 1, 0)));
    assert_eq!(world.stock(), 1);
}

#[test]
fn stock_moves_to_the_endpoint_of_the_second_exchange() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), vec![runs(1)]);
    world.greet(2, filter(2), Vec::new(), vec![runs_as(again(2, 1, 1), SECOND)]);
    let snapshot = world.control.status(world.now).pools[0].snapshot.clone();
    let stock: Vec<u64> = snapshot.endpoints.iter().map(|endpoint| endpoint.stock).collect();
    assert_eq!(stock, [0, 1]);
    assert_eq!(world.take().counts(), (1, 1, 0));
}

#[test]
fn a_first_exchange_that_is_reported_last_does_not_run() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(2, filter(2), vec![again(2, 1, 1)], Vec::new());
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![2], (1, 1, 0)));
    world.greet(1, filter(1), Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.stock(), 1);
    // Both streams end at the same time, the second first.
    world.send(2, completed(2));
    world.close(1);
    let back = Filter { stream: 2, ..filter(1) };
    world.greet(3, back, Vec::new(), vec![runs(1)]);
    assert_eq!(world.stock(), 0, "its place was taken by one that has ended");
    world.send(3, Message::Heartbeat(wire::Heartbeat::default()));
    assert!(world.control.is_idle());
}
