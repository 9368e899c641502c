//! Prefill apart from decoding, through a gateway that asks the picker.

use penstock_tests::gateway::slots;
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run};

const HEADER: &str = "x-prefiller-host-port";

#[test]
fn the_gateway_gets_the_header_that_names_the_endpoint_for_the_prompt() {
    run(async {
        for request_body in ["FULL_DUPLEX_STREAMED", "BUFFERED"] {
            let (prompts, answers) = (Upstream::scripted().await, Upstream::scripted().await);
            let pool = format!(
                "- name: chat\n  endpoints: {{static: [{{address: '{}', role: prefill}}, {{address: '{}', role: decode}}]}}\n  \
                 disaggregation: {{min_uncached_tokens: 100}}\n{}",
                prompts.address(),
                answers.address(),
                slots(4)
            );
            let gateway =
                PickerGateway::start("", &[pool], Modes { request_body, ..Modes::FULL_DUPLEX }).await;
            let asked = gateway.spawn(ClientRequest::chat("m", "hi").header(HEADER, "10.0.0.1:1"));
            let call = answers.next().await;
            assert_eq!(call.header(HEADER), "", "{request_body}: a client's value is removed");
            call.answer();
            assert_eq!(asked.await.expect("answered").status, 200);

            let long = ClientRequest::chat("m", &"word ".repeat(1_000)).streamed();
            let asked = gateway.spawn(long);
            let call = answers.next().await;
            assert_eq!(call.header(HEADER), prompts.address().to_string(), "{request_body}");
            gateway.stock("chat", 2).await;
            let stream = call.stream();
            stream.text("hello");
            gateway.stock("chat", 1).await;
            stream.finish(1_000, 4);
            assert_eq!(asked.await.expect("answered").status, 200);
            gateway.stock("chat", 0).await;
        }
    });
}
