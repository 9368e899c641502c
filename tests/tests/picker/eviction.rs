//! Evictions by the picker: the gateway answers the client of a request that is at its server.

use penstock_tests::gateway::{pool, slots};
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run};

const MODES: [Modes; 3] = [
    Modes::FULL_DUPLEX,
    Modes { request_body: "BUFFERED", response_body: Some("STREAMED"), trailers: false },
    Modes { request_body: "STREAMED", response_body: Some("BUFFERED"), trailers: false },
];

async fn start(server: &Upstream, places: u32, modes: Modes) -> PickerGateway {
    let eviction = "  queue: {credits: off}\n  eviction: {sheddable: true, after: 100ms}\n";
    let keys = slots(places) + eviction;
    PickerGateway::start("", &[pool("chat", "", &[server], &keys)], modes).await
}

fn sheddable(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text).tenant("batch").priority("sheddable")
}

fn critical(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text).tenant("chat").priority("critical")
}

#[test]
fn a_silent_sheddable_request_gives_up_its_place_in_every_mode() {
    run(async {
        for modes in MODES {
            let server = Upstream::scripted().await;
            let gateway = start(&server, 1, modes).await;
            let shed = gateway.spawn(sheddable("shed"));
            let mut call = server.next().await;
            let urgent = gateway.spawn(critical("urgent"));
            shed.await.expect("no panic").expect_error(429, "evicted", "evicted");
            call.gone().await;
            drop(call);
            let next = server.next().await;
            assert_eq!(next.text(), "urgent", "{modes:?}");
            next.answer();
            assert_eq!(urgent.await.expect("no panic").status, 200, "{modes:?}");
            gateway.stock("chat", 0).await;
        }
    });
}

#[test]
fn a_request_whose_answer_has_begun_stays() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, 2, Modes::FULL_DUPLEX).await;
        let silent = gateway.spawn(sheddable("silent"));
        let silent_call = server.next().await;
        let mut answers = gateway.open(sheddable("answers").streamed());
        let events = server.next().await.stream();
        events.text("one");
        let mut response = (&mut answers).await.expect("no panic").expect("an answer");
        let urgent = gateway.spawn(critical("urgent"));
        silent.await.expect("no panic").expect_error(429, "evicted", "evicted");
        drop(silent_call);
        server.next().await.answer();
        assert_eq!(urgent.await.expect("no panic").status, 200);
        events.finish(8, 1);
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.expect("a piece") {
            body.extend_from_slice(&piece);
        }
        assert!(String::from_utf8_lossy(&body).ends_with("data: [DONE]\n\n"));
        gateway.stock("chat", 0).await;
    });
}
