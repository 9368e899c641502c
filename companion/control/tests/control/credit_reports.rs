//! A request that is reported at its end counts as one that was reported while it ran, and then ended.

use penstock_control::Output;
use penstock_wire::filter_frame::Event as Message;
use penstock_wire::{self as wire};

use crate::credits::{admitted, ended, with_credit};
use crate::harness::*;

/// Not held by the filter, so the request counts beside the credit.
const CREDIT: u64 = 7;

/// The observations of a world since the last call, and its pool's state.
fn seen(world: &mut World) -> (Vec<String>, String) {
    let mut observations = Vec::new();
    while let Some(output) = world.control.poll_output() {
        if let Output::Observe(observation) = output {
            observations.push(format!("{observation:?}"));
        }
    }
    let pool = &world.control.status(world.now).pools[0];
    let state = format!(
        "{:?} {:?} {:?} {:?} {:?}",
        pool.served, pool.models, pool.model, pool.snapshot.counters, pool.snapshot.endpoints
    );
    (observations, state)
}

/// Reports the request at its end in one world, and before it in another.
fn both_ways(change: impl Fn(&mut wire::Admitted)) -> [(Vec<String>, String); 2] {
    let mut report = ended(10, CREDIT);
    change(&mut report);
    let mut at_once = with_credit();
    at_once.report(1, report.clone());
    let mut in_two = with_credit();
    let completed = report.completed.take().expect("it has ended");
    in_two.report(1, report);
    in_two.send(1, Message::Completed(completed));
    [seen(&mut at_once), seen(&mut in_two)]
}

#[test]
fn a_served_request_counts_the_same() {
    let [at_once, in_two] = both_ways(|_| {});
    assert_eq!(at_once, in_two);
    assert_eq!(at_once.0.len(), 3, "its arrival, its outcome and its end: {at_once:?}");
}

#[test]
fn a_request_that_failed_or_went_elsewhere_counts_the_same() {
    type Change = fn(&mut wire::Completed);
    let changes: [Change; 5] = [
        |completed| completed.status = 500,
        |completed| completed.end = wire::EndReason::ClientLeft.into(),
        |completed| completed.end = wire::EndReason::Unavailable.into(),
        |completed| completed.endpoint = SECOND.to_owned(),
        |completed| completed.endpoint.clear(),
    ];
    for change in changes {
        let [at_once, in_two] = both_ways(|report| change(report.completed.as_mut().expect("an end")));
        assert_eq!(at_once, in_two);
    }
}

#[test]
fn a_report_at_the_end_opens_no_request_and_is_remembered() {
    let mut world = with_credit();
    world.report(1, ended(10, CREDIT));
    assert!(world.stock() == 0 && world.control.status(world.now).requests == 0);
    world.report(1, admitted(10, CREDIT));
    world.take();
    assert_eq!(world.stock(), 0, "an older report of the same request");
}
