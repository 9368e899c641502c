//! Streams that wait for long are sent to a companion, and wait on at the requeue listener.

use std::time::Duration;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;

use crate::worker::harness::*;

const EVERY: Duration = Duration::from_secs(15);
const STREAM: &str = r#"{"model":"m1","stream":true,"messages":[]}"#;

fn rig(keeps_alive: bool) -> Rig {
    let config = config(|config| {
        config.policy.pools[0].keep_alive_ms = Some(15_000);
        config.requeue_listener = Some("envoy://requeue/".into());
        config.keeps_alive = keeps_alive;
    });
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig
}

fn wait(rig: &mut Rig, body: &str) -> u64 {
    let sequence = rig.paused(&[]);
    assert_eq!(rig.body(sequence, body, true), None);
    rig.outputs();
    sequence
}

/// The edits of the resumed stream, if there is one.
fn resumed(outputs: &[Output]) -> Option<&str> {
    outputs.iter().find_map(|output| match output {
        Output::Resume(_, edits) => Some(edits.as_str()),
        _ => None,
    })
}

fn after(rig: &mut Rig, time: Duration) -> Option<String> {
    rig.advance(time);
    resumed(&rig.tick()).map(str::to_owned)
}

#[test]
fn only_streams_are_sent_and_only_where_envoy_has_the_way() {
    let mut rig = rig(true);
    wait(&mut rig, r#"{"model":"m1","messages":[]}"#);
    assert_eq!(after(&mut rig, EVERY * 3), None, "no stream");
    wait(&mut rig, STREAM);
    assert_eq!(after(&mut rig, EVERY - Duration::from_millis(1)), None, "too early");
    let edits = after(&mut rig, Duration::from_millis(1)).expect("sent");
    assert!(edits.contains(r#"Set("x-penstock-keep-alive", "15000")"#), "{edits}");
    assert!(edits.contains(r#"Set("x-penstock-requeue", "#), "{edits}");
    assert!(!edits.contains("x-penstock-pool") && !edits.contains("destination"), "to no server: {edits}");
    assert_eq!(after(&mut rig, EVERY * 3), None, "once");

    let mut rig = self::rig(false);
    wait(&mut rig, STREAM);
    assert_eq!(after(&mut rig, EVERY * 3), None, "no way");
}

#[test]
fn a_grant_that_comes_late_is_ignored_and_the_end_cancels() {
    let mut rig = rig(true);
    let sequence = wait(&mut rig, STREAM);
    after(&mut rig, EVERY).expect("sent");
    let outputs = rig.command(0, [Kind::Grant(grant(sequence))]);
    assert!(outputs.is_empty(), "it is granted under its other key: {outputs:?}");
    let outputs = rig.log(sequence);
    let events = outputs.iter().filter(|output| matches!(output, Output::Sent(_, Event::Cancel(_))));
    assert_eq!(events.count(), 1, "{outputs:?}");
    assert_eq!(rig.worker.exchanges(), 0);
}

#[test]
fn without_a_companion_in_charge_it_waits_silently() {
    let mut rig = rig(true);
    wait(&mut rig, STREAM);
    rig.closed();
    assert_eq!(after(&mut rig, EVERY), None);
}
