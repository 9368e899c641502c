//! Claims of clients: their endpoints, and the claims that are ignored without trust.

use penstock_engine::input::Band;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

fn world() -> World {
    let mut world = World::with(settings_of(&[SERVER, SECOND, THIRD]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

fn constrained(subset: &[&str], pin: &str) -> wire::Register {
    wire::Register {
        subset: subset.iter().map(ToString::to_string).collect(),
        pin: pin.into(),
        ..register(1)
    }
}

#[test]
fn a_request_is_granted_within_its_constraints() {
    for (subset, pin, expected) in [
        (&[][..], SECOND, vec![SECOND]),
        (&[THIRD, "10.0.0.1:1"][..], "", vec![THIRD]),
        (&[THIRD, SECOND][..], SECOND, vec![SECOND]),
    ] {
        let mut world = world();
        world.send(1, Message::Register(constrained(subset, pin)));
        assert_eq!(world.take().grants()[0].1.endpoints, expected);
    }
}

#[test]
fn a_request_without_an_eligible_endpoint_is_rejected_at_once() {
    for (subset, pin) in [(&["10.0.0.1:1"][..], ""), (&[][..], "x"), (&[THIRD][..], SECOND)] {
        let mut world = world();
        world.send(1, Message::Register(constrained(subset, pin)));
        assert_eq!(world.take().rejected(), [(1, "no_endpoints", 503)]);
        assert!(world.control.is_idle());
    }
}

#[test]
fn claims_without_trust_can_only_lower_the_priority() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].objectives = vec![("gold".into(), Band::Critical)];
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world.send(1, Message::Register(register(1)));
    for (sequence, priority, lowered) in [(2, "critical", 1), (3, "GOLD", 0), (4, "gold", 1), (5, "low", 0)] {
        world.send(
            1,
            Message::Register(wire::Register {
                sequence,
                priority: priority.into(),
                client: "10.0.0.1".into(),
                fairness_id: format!("t{sequence}"),
                untrusted: true,
                ..constrained(&["10.0.0.1:1"], "x")
            }),
        );
        let taken = world.take();
        assert_eq!((taken.lowered, taken.rejected()), (lowered + usize::from(sequence == 1), vec![]));
    }
    let status = world.control.status(world.now);
    let bands: Vec<u64> = status.pools[0].snapshot.bands.iter().map(|flow| flow.waiting).collect();
    assert_eq!(bands, [0, 3, 1]);
    let flows = status.pools[0].snapshot.flows.iter();
    let foreign = flows.filter(|flow| flow.waiting > 0);
    for flow in foreign {
        let (address, number) = flow.key.split_once('/').expect("ADDRESS/NN");
        assert_eq!((address, number.len()), ("10.0.0.1", 2), "{}", flow.key);
    }
}
