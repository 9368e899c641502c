//! Data that the workers of one Envoy share: the process identity and the current policy.

use penstock_filter_core::effect::HeadersAction;
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Hello, Policy, Route};
use prost::Message;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{NoSharedData, Output, Rig, Shared, config};

fn hello(rig: &mut Rig) -> Hello {
    match &rig.open()[..] {
        [Output::Sent(1, Event::Hello(hello))] => hello.clone(),
        outputs => panic!("one Hello: {outputs:?}"),
    }
}

#[test]
fn all_workers_of_an_envoy_send_the_id_that_the_first_drew() {
    let shared = Shared::default();
    let config = config(|_| {});
    let ids: Vec<u64> = [5, 6, 7].map(|epoch| hello(&mut Rig::with(epoch, &config, &shared)).envoy).into();
    assert_eq!(ids, [75, 75, 75]);
    assert_eq!(hello(&mut Rig::with(8, &config, &Shared::default())).envoy, 78);
}

/// Shared data in which another worker always writes first.
#[derive(Debug)]
struct Raced(Shared);

impl SharedData for Raced {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.get(key)
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let other = [9_u64.to_le_bytes().as_slice(), &[1; 16]].concat();
        self.0.set(key, &other, SetIf::Absent);
        self.0.set(key, value, condition)
    }
}

#[test]
fn one_identity_wins_if_two_workers_draw_at_once() {
    let mut rig = Rig::with_shared_data(5, &config(|_| {}), Box::new(Raced(Shared::default())));
    assert_eq!(hello(&mut rig).envoy, 9);
}

#[test]
fn without_shared_data_an_envoy_has_no_identity() {
    let mut rig = Rig::with_shared_data(5, &config(|_| {}), Box::new(NoSharedData));
    assert_eq!(hello(&mut rig).envoy, 0);
    rig.hello_ack(1);
    let running = rig.running("m1");
    assert_eq!(rig.log(running).len(), 1);
}

#[test]
fn new_worker_starts_with_the_current_policy() {
    let shared = Shared::default();
    let first = config(|_| {});
    let mut rig = Rig::with(5, &first, &shared);
    rig.open();
    rig.hello_ack(1);
    let policy = Policy {
        digest: "d1".into(),
        body_bytes_max: 10,
        routes: vec![Route {
            path: "/other".into(),
            api: penstock_wire::Api::Completions.into(),
            ..Route::default()
        }],
        others_pass: true,
        ..Policy::default()
    };
    rig.command(0, [Kind::Policy(policy.clone())]);

    let mut next = Rig::with(6, &first, &shared);
    assert!(matches!(next.headers(&[], false), HeadersAction::Pass(_)));
    assert!(matches!(next.headers(&[(":path", "/other")], false), HeadersAction::Pause(1, _)));
    assert_eq!(hello(&mut next).policy_digest, "d1");

    // The policy of another companion doesn't apply, and a malformed one is ignored.
    let other = config(|config| config.companion = "d".into());
    assert_eq!(hello(&mut Rig::with(7, &other, &shared)).policy_digest, "d0");
    assert_eq!(shared.get("penstock/policy/c").map(|(kept, _)| kept), Some(policy.encode_to_vec()));
    shared.set("penstock/policy/c", b"\xff", SetIf::Always);
    assert_eq!(hello(&mut Rig::with(8, &first, &shared)).policy_digest, "d0");
}
