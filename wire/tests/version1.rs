//! Version 1 of the protocol, as its last release encoded it: every message, with every field that release sent.
//!
//! That release has written the bytes. They must decode to the same messages and encode to the same bytes for as long as
//! version 1 is supported, because during a rolling upgrade one side may still use it.

mod hex;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::source::From as SourceFrom;
use penstock_wire::{
    Api, Bye, Cancel, Command, CompanionFrame, Completed, EndReason, Endpoints, Fallback, FilterFrame, Grant,
    Heartbeat, Hello, HelloAck, Identity, ModelRule, ModelTable, Policy, Pool, Refused, Register, Reject,
    Route, Running, Source, Started,
};
use prost::Message;

use self::hex::{bytes, hex};

fn register() -> Register {
    Register {
        sequence: 300,
        age_us: 1_500_000,
        request_id: "r-1".into(),
        api: Api::Messages.into(),
        model: "llama-8b".into(),
        prompt_bytes: 4_096,
        max_tokens: Some(0),
        stream: true,
        body_bytes: 5_000,
        fairness_id: "acme".into(),
        fairness_id_private: true,
        user: "u1".into(),
        priority: "critical".into(),
        class: "batch".into(),
        strict: Some(3),
        jump_s: Some(60),
        client: "10.1.2.3".into(),
        subset: vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()],
        pin: "127.0.0.1:1".into(),
        tolerations: vec!["spot".into()],
        deadline_ms: Some(2_000),
        slo_ttft_ms: Some(500),
        prefix_hashes: vec![1, u64::MAX],
        requeues: 2,
        bad_deadline: true,
        bad_slo_ttft: true,
        ..Default::default()
    }
}

fn hello() -> Hello {
    Hello {
        epoch_hi: 1,
        epoch_lo: u64::MAX,
        stream: 7,
        version_min: 1,
        version_max: 1,
        policy_digest: "d1".into(),
        node: "edge".into(),
        part: 3,
        last: true,
        waiting: vec![register()],
        running: vec![Running {
            register: Some(Register { sequence: 9, ..Default::default() }),
            pool: "chat".into(),
            endpoint: "127.0.0.1:8001".into(),
            age_us: 5,
            started: true,
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn completed() -> Completed {
    Completed {
        sequence: 300,
        endpoint: "127.0.0.1:8001".into(),
        status: 200,
        attempts: 2,
        end: EndReason::ResetInsideAnswer.into(),
        first_byte_us: Some(10),
        last_byte_us: Some(20),
        prompt_tokens: Some(30),
        cached_tokens: Some(0),
        output_tokens: Some(50),
        output_chunks: 60,
    }
}

fn source(from: SourceFrom) -> Source {
    Source { from: Some(from) }
}

fn policy() -> Policy {
    let table = ModelTable { rules: vec![ModelRule { glob: "chat-*".into(), value: "critical".into() }] };
    Policy {
        digest: "d1".into(),
        routes: vec![Route { path: "/v1/chat/completions".into(), api: Api::ChatCompletions.into() }],
        body_bytes_max: 1 << 25,
        identity: Some(Identity {
            fairness_id: vec![source(SourceFrom::Header("x-a".into()))],
            user: vec![source(SourceFrom::Body("user".into()))],
            priority: vec![source(SourceFrom::Model(table))],
            class: vec![source(SourceFrom::Metadata("ns/key".into()))],
            strict: vec![source(SourceFrom::Header("x-s".into()))],
            jump: vec![source(SourceFrom::Header("x-j".into()))],
            ..Default::default()
        }),
        pools: vec![Pool {
            name: "chat".into(),
            models: vec!["llama-*".into()],
            hold_ms: 5_000,
            fallback: Fallback::Open.into(),
            ttl_ms: 30_000,
            no_endpoint_ttl_ms: 60_000,
            capacity_status: 429,
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn events() -> Vec<(&'static str, Event)> {
    vec![
        ("hello", Event::Hello(hello())),
        ("register", Event::Register(register())),
        ("cancel", Event::Cancel(Cancel { sequence: 300 })),
        (
            "started",
            Event::Started(Started {
                sequence: 300,
                endpoint: "127.0.0.1:8001".into(),
                status: 200,
                attempts: 2,
                after_us: 1_000,
                ..Default::default()
            }),
        ),
        ("completed", Event::Completed(completed())),
        (
            "refused",
            Event::Refused(Refused {
                sequence: 300,
                code: "queue_timeout".into(),
                outcome: "expired_ttl".into(),
                status: 503,
                model: "llama-8b".into(),
                request_id: "r-1".into(),
                registered: true,
                ..Refused::default()
            }),
        ),
        ("beat", Event::Heartbeat(Heartbeat {})),
        ("bye", Event::Bye(Bye {})),
    ]
}

fn commands() -> Vec<(&'static str, Kind)> {
    vec![
        ("hello_ack", Kind::HelloAck(HelloAck { version: 1, term: 1_700_000_000_000 })),
        ("policy", Kind::Policy(policy())),
        (
            "grant",
            Kind::Grant(Grant {
                sequence: 300,
                pool: "chat".into(),
                endpoints: vec!["127.0.0.1:8001".into(), "127.0.0.1:8002".into()],
                outcome: "dispatched".into(),
                queue_us: 12_345,
                saturation_milli: 420,
                target_model: "llama-a".into(),
                ..Default::default()
            }),
        ),
        (
            "reject",
            Kind::Reject(Reject {
                sequence: 300,
                status: 503,
                code: "queue_full".into(),
                outcome: "rejected_queue_full".into(),
                message: "full".into(),
                retry_after_ms: Some(1_500),
                r#final: true,
                queue_us: 7,
                saturation_milli: 1_000,
                ..Reject::default()
            }),
        ),
        (
            "endpoints",
            Kind::Endpoints(Endpoints {
                pool: "chat".into(),
                ready: vec!["127.0.0.1:8001".into()],
                ..Default::default()
            }),
        ),
        ("bye", Kind::Bye(Bye {})),
    ]
}

/// Frames of a filter.
const FILTER_FRAMES: [(&str, &str); 8] = [
    (
        "hello",
        "080510061aed0109010000000000000011ffffffffffffffff180720012801320264313a04656467654003480152a40108ac \
         0210e0c65b1a03722d3120052a086c6c616d612d386230802038004001488827520461636d655801620275316a0863726974 \
         6963616c72056261746368780380013c8a010831302e312e322e3392010b3132372e302e302e313a3192010b3132372e302e \
         302e313a329a010b3132372e302e302e313a31a2010473706f74a801d00fb001f403ba01100100000000000000ffffffffff \
         ffffffc00102d00101d801015a1e0a0208091204636861741a0e3132372e302e302e313a3830303120052801",
    ),
    (
        "register",
        "0805100622a40108ac0210e0c65b1a03722d3120052a086c6c616d612d386230802038004001488827520461636d65580162 \
         0275316a08637269746963616c72056261746368780380013c8a010831302e312e322e3392010b3132372e302e302e313a31 \
         92010b3132372e302e302e313a329a010b3132372e302e302e313a31a2010473706f74a801d00fb001f403ba011001000000 \
         00000000ffffffffffffffffc00102d00101d80101",
    ),
    ("cancel", "080510062a0308ac02"),
    ("started", "08051006321b08ac02120e3132372e302e302e313a3830303118c801200228e807"),
    ("completed", "080510063a2608ac02120e3132372e302e302e313a3830303118c80120022805300a3814401e48005032583c"),
    (
        "refused",
        "08051006423308ac02120d71756575655f74696d656f75741a0b657870697265645f74746c20f7032a086c6c616d612d3862 \
         3203722d313801",
    ),
    ("beat", "080510064a00"),
    ("bye", "080510065200"),
];

/// Frames of a companion.
const COMPANION_FRAMES: [(&str, &str); 6] = [
    ("hello_ack", "080810091a0b0a0908011080d095ffbc31"),
    (
        "policy",
        "080810091a88011285010a02643112180a142f76312f636861742f636f6d706c6574696f6e7310011880808010223f0a050a \
         03782d6112061204757365721a1622140a120a06636861742d2a1208637269746963616c22081a066e732f6b65792a050a03 \
         782d7332050a03782d6a2a1f0a046368617412076c6c616d612d2a188827200128b0ea0130e0d40338ad03",
    ),
    (
        "grant",
        "080810091a461a4408ac021204636861741a0e3132372e302e302e313a383030311a0e3132372e302e302e313a3830303222 \
         0a6469737061746368656428b96030a4033a076c6c616d612d61",
    ),
    (
        "reject",
        "080810091a39223708ac0210f7031a0a71756575655f66756c6c221372656a65637465645f71756575655f66756c6c2a0466 \
         756c6c30dc0b3801400748e807",
    ),
    ("endpoints", "080810091a182a160a0463686174120e3132372e302e302e313a38303031"),
    ("bye", "080810091a023200"),
];

#[test]
fn filter_frames_of_the_last_release_decode_and_encode_unchanged() {
    for ((name, event), (golden_name, golden)) in events().into_iter().zip(FILTER_FRAMES) {
        assert_eq!(name, golden_name);
        let frame = FilterFrame { seq: 5, ack: 6, admitted: Vec::new(), event: Some(event) };
        let golden = bytes(golden);
        assert_eq!(FilterFrame::decode(&*golden), Ok(frame.clone()), "{name}");
        assert_eq!(hex(&frame.encode_to_vec()), hex(&golden), "{name}");
    }
}

#[test]
fn companion_frames_of_the_last_release_decode_and_encode_unchanged() {
    for ((name, kind), (golden_name, golden)) in commands().into_iter().zip(COMPANION_FRAMES) {
        assert_eq!(name, golden_name);
        let frame = CompanionFrame { seq: 8, ack: 9, commands: vec![Command { kind: Some(kind) }] };
        let golden = bytes(golden);
        assert_eq!(CompanionFrame::decode(&*golden), Ok(frame.clone()), "{name}");
        assert_eq!(hex(&frame.encode_to_vec()), hex(&golden), "{name}");
    }
}

#[test]
fn fields_of_a_later_version_are_ignored() {
    // Field 99 as a number, as a string and as eight bytes, both in the message and in its frame.
    let unknown = bytes("980601 9a060161 990600000000000000ff");
    let mut cancel = bytes("08ac02");
    cancel.extend(&unknown);
    let mut frame = bytes("08051006");
    frame.extend(&unknown);
    frame.extend([0x2a, u8::try_from(cancel.len()).expect("a short message")]);
    frame.extend(cancel);
    let expected = FilterFrame {
        seq: 5,
        ack: 6,
        admitted: Vec::new(),
        event: Some(Event::Cancel(Cancel { sequence: 300 })),
    };
    assert_eq!(FilterFrame::decode(&*frame), Ok(expected));
}

#[test]
fn field_of_an_earlier_version_is_ignored() {
    // Version 1 had a field 25 in Register, which no release ever set.
    let mut encoded = register().encode_to_vec();
    encoded.extend(bytes("ca010161"));
    assert_eq!(Register::decode(&*encoded), Ok(register()));
}
