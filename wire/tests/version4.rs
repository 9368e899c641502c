//! The frames of version 4 that version 1 doesn't have keep their encoding: filter and companion of adjacent releases run
//! together.

mod hex;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{
    Admitted, Command, CompanionFrame, Completed, Credit, CreditReturned, EndReason, EndpointCredit,
    FilterFrame, Recall, Register, Running,
};
use prost::Message;

use self::hex::{bytes, hex};

fn register() -> Register {
    Register {
        sequence: 300,
        age_us: 9,
        model: "m".into(),
        leased_endpoint: "10.0.0.1:8000".into(),
        ..Register::default()
    }
}

fn report() -> Admitted {
    Admitted {
        running: Some(Running {
            register: Some(register()),
            pool: "chat".into(),
            endpoint: "10.0.0.1:8000".into(),
            age_us: 5,
            started: true,
            first_byte: true,
        }),
        credit: 3,
        completed: Some(Completed {
            sequence: 300,
            status: 200,
            end: EndReason::Served.into(),
            ..Completed::default()
        }),
    }
}

/// Reports and an event.
fn contents() -> [(&'static str, Vec<Admitted>, Option<Event>); 3] {
    let returned = Event::CreditReturned(CreditReturned { pool: "chat".into(), credit: 3 });
    [
        ("admitted", vec![report()], None),
        ("credit_returned", vec![], Some(returned.clone())),
        ("both", vec![report(), Admitted::default()], Some(returned)),
    ]
}

fn commands() -> [(&'static str, Kind); 2] {
    [
        (
            "credit",
            Kind::Credit(Credit {
                pool: "chat".into(),
                id: 3,
                ttl_ms: 2_000,
                endpoints: vec![EndpointCredit { address: "10.0.0.1:8000".into(), requests: 4 }],
                prompt_bytes_max: 1_024,
                saturation_milli: 250,
                requeue: true,
            }),
        ),
        ("recall", Kind::Recall(Recall { pool: "chat".into(), credit: 3 })),
    ]
}

/// Frames of a filter.
const FILTER_FRAMES: [(&str, &str); 3] = [
    (
        "admitted",
        "080510065a430a350a1808ac0210092a016d92020d31302e302e302e313a383030301204636861741a0d31302e302e30 \
         2e313a3830303020052801300110031a0808ac0218c8012801",
    ),
    ("credit_returned", "0805100662080a04636861741003"),
    (
        "both",
        "0805100662080a046368617410035a430a350a1808ac0210092a016d92020d31302e302e302e313a38303030120463686174 \
         1a0d31302e302e302e313a3830303020052801300110031a0808ac0218c80128015a00",
    ),
];

/// Frames of a companion.
const COMPANION_FRAMES: [(&str, &str); 2] = [
    (
        "credit",
        "080810091a283a260a0463686174100318d00f22110a0d31302e302e302e313a38303030100428800830fa013801",
    ),
    ("recall", "080810091a0a42080a04636861741003"),
];

#[test]
fn filter_frames_decode_and_encode_unchanged() {
    for ((name, admitted, event), (golden_name, golden)) in contents().into_iter().zip(FILTER_FRAMES) {
        assert_eq!(name, golden_name);
        let frame = FilterFrame { seq: 5, ack: 6, admitted, event };
        let golden = bytes(golden);
        assert_eq!(hex(&frame.encode_to_vec()), hex(&golden), "{name}");
        assert_eq!(FilterFrame::decode(&*golden), Ok(frame), "{name}");
    }
}

#[test]
fn companion_frames_decode_and_encode_unchanged() {
    for ((name, kind), (golden_name, golden)) in commands().into_iter().zip(COMPANION_FRAMES) {
        assert_eq!(name, golden_name);
        let frame = CompanionFrame { seq: 8, ack: 9, commands: vec![Command { kind: Some(kind) }] };
        let golden = bytes(golden);
        assert_eq!(hex(&frame.encode_to_vec()), hex(&golden), "{name}");
        assert_eq!(CompanionFrame::decode(&*golden), Ok(frame), "{name}");
    }
}
