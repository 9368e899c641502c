//! An Envoy that pauses requests and never passes their bodies on.

use std::time::Duration;

use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::filter_frame::Event;

use crate::worker::harness::*;

const SECOND: Duration = Duration::from_secs(1);

/// The requests whose bodies are looked for at a tick.
fn looked_for(rig: &mut Rig) -> Vec<u64> {
    rig.worker.handle_tick(rig.now);
    let looked_for = rig.outputs().into_iter().filter_map(|output| match output {
        Output::CountReceived(sequence) => Some(sequence),
        _ => None,
    });
    looked_for.collect()
}

fn received(rig: &mut Rig, sequence: u64, bytes: u64) -> (Option<LocalReply>, Vec<Output>) {
    let reply = rig.worker.handle_received(rig.now, sequence, bytes);
    (reply, rig.outputs())
}

#[test]
fn a_request_whose_body_envoy_has_and_keeps_is_refused_with_the_cause() {
    let mut rig = Rig::connected();
    let first = rig.paused(&[]);
    rig.advance(SECOND - Duration::from_millis(1));
    assert!(looked_for(&mut rig).is_empty(), "it may be on its way");
    assert!(rig.worker.tick_period(rig.now) <= Duration::from_millis(500));
    rig.advance(SECOND / 2);
    assert_eq!(looked_for(&mut rig), [first]);
    assert_eq!(received(&mut rig, first, 0), (None, vec![]), "its client is slow");
    assert!(looked_for(&mut rig).is_empty(), "not at every tick");
    rig.advance(SECOND / 2);
    assert_eq!(looked_for(&mut rig), [first], "it is looked for again");

    let (reply, outputs) = received(&mut rig, first, 1);
    let reply = reply.expect("refused");
    let body = String::from_utf8(reply.body.clone()).expect("text");
    assert_eq!(reply.status, 503);
    for part in ["filter_misconfigured", "allow_on_headers_stop_iteration"] {
        assert!(body.contains(part), "{body}");
    }
    let is_reported = |output: &Output| matches!(output, Output::Sent(_, Event::Refused(refused)) if refused.code == "filter_misconfigured");
    assert!(outputs.iter().any(is_reported), "{outputs:?}");
    let lines = |outputs: &[Output]| {
        let lines = outputs.iter().filter_map(|output| match output {
            Output::Error(line) => Some(line.clone()),
            _ => None,
        });
        lines.collect::<Vec<_>>()
    };
    assert!(lines(&outputs)[0].ends_with(": 1"), "{outputs:?}");

    // One line a minute.
    for (later, expected) in [(SECOND, 0), (58 * SECOND, 0), (SECOND, 1)] {
        let sequence = rig.paused(&[]);
        rig.advance(later);
        let (reply, outputs) = received(&mut rig, sequence, 9);
        assert!(reply.is_some());
        assert_eq!(lines(&outputs).len(), expected, "{outputs:?}");
        if expected == 1 {
            assert!(lines(&outputs)[0].ends_with(": 3"), "{outputs:?}");
        }
    }
    assert!(looked_for(&mut rig).is_empty());
}

#[test]
fn all_requests_are_looked_for_in_turn() {
    let mut rig = Rig::connected();
    let all: Vec<u64> = (0..5_000).map(|_| rig.paused(&[])).collect();
    let mut seen = Vec::new();
    for _ in 0..3 {
        rig.advance(SECOND);
        let some = looked_for(&mut rig);
        assert!(some.len() <= 2_048, "{}", some.len());
        seen.extend(some);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, all);
}

#[test]
fn an_envoy_that_has_passed_a_body_passes_all() {
    let mut rig = Rig::connected();
    let slow = rig.paused(&[]);
    let (_, _) = rig.waiting("m1");
    rig.advance(5 * SECOND);
    assert!(looked_for(&mut rig).is_empty());
    assert_eq!(received(&mut rig, slow, 1), (None, vec![]));
    assert!(rig.worker.tick_period(rig.now) > Duration::from_millis(500));
}
