//! A worker goes on after a panic that its host has caught.

use std::time::Duration;

use penstock_wire::filter_frame::Event;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig};

#[test]
fn requests_are_listed_anew_without_those_whose_streams_have_ended() {
    let mut rig = Rig::connected();
    let (running, lost) = (rig.running("m1"), rig.running("m1"));
    let lost_context = rig.contexts;
    let (waiting, _) = rig.waiting("m1");
    rig.worker.recover(rig.now, |context| context != lost_context);
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_millis(50));
    let outputs = rig.open();
    let [Output::Sent(1, Event::Hello(hello))] = &outputs[..] else { panic!("{outputs:?}") };
    let listed: Vec<u64> = hello
        .running
        .iter()
        .filter_map(|running| running.register.as_ref())
        .map(|register| register.sequence)
        .collect();
    assert_eq!(listed, [running]);
    assert_eq!(hello.waiting.iter().map(|register| register.sequence).collect::<Vec<_>>(), [waiting]);
    assert_eq!(rig.hello_ack(1), []);
    assert_eq!(rig.log(lost), [], "its end is known to nobody");
    let outputs = rig.log(running);
    assert!(matches!(&outputs[..], [Output::Sent(_, Event::Completed(_))]), "{outputs:?}");
}

#[test]
fn a_request_whose_end_is_unknown_is_in_no_list() {
    let mut rig = Rig::connected();
    let (running, waiting) = (rig.running("m1"), rig.waiting("m1").0);
    for sequence in [running, waiting] {
        rig.worker.abandon(rig.now, sequence);
    }
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_millis(50));
    let outputs = rig.open();
    let [Output::Sent(1, Event::Hello(hello))] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(hello.running.is_empty() && hello.waiting.is_empty(), "{hello:?}");
    assert_eq!(rig.hello_ack(1), []);
    assert_eq!([running, waiting].map(|sequence| rig.log(sequence).len()), [0, 0]);
}
