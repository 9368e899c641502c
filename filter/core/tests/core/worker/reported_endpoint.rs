//! Routes that report the endpoint in the response headers.

use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant};

#[test]
fn endpoint_reported_by_the_route_is_neither_fetched_nor_set() {
    let config = config(|config| config.routes_report_endpoint = true);
    let mut rig = Rig::with(7, &config, &Shared::default());
    rig.open();
    rig.hello_ack(2);
    let (sequence, _) = rig.waiting("m1");
    rig.command(0, [Kind::Grant(grant(sequence))]);
    // The address that Envoy would return.
    rig.host.0.insert("upstream.address", b"9.9.9.9:9".to_vec());
    let answer = [
        (":status", "200"),
        ("content-length", "2"),
        ("x-gateway-destination-endpoint-served", "1.1.1.1:1"),
        ("x-penstock-served-again", "spoofed"),
    ];
    assert_eq!(
        rig.response(sequence, &answer, false).edits,
        [
            HeaderEdit::Add("x-penstock-outcome", "dispatched".into()),
            HeaderEdit::Add("x-penstock-queue-ms", "12".into()),
            HeaderEdit::Add("x-penstock-saturation", "0.42".into()),
            HeaderEdit::Remove("x-penstock-served-again".into()),
        ]
    );
    rig.response_body(sequence, "{}", true);
    let outputs = rig.log(sequence);
    let [Output::Sent(_, Event::Completed(completed))] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(completed.endpoint, "1.1.1.1:1");
}
