//! The encoding of every message with every field: filter and companion of adjacent releases run together, so a field keeps its
//! number and its type for as long as its version of the protocol is supported.
//!
//! The bytes are those of version 1, the first one.

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::source::From as SourceFrom;
use penstock_wire::{
    Admitted, Api, ApiKey, ApiKeys, AttemptFailed, Bye, Cancel, Command, CompanionFrame, Completed, Credit,
    CreditReturned, EndReason, EndpointCredit, Endpoints, Evict, Fallback, FilterFrame, Grant, Heartbeat,
    Hello, HelloAck, Identity, ListedModel, ModelList, ModelRule, ModelTable, Network, Policy, Pool,
    RateLimit, Recall, Refused, Register, Reject, RequestKey, RequeueOn, Role, Route, Running, Source,
    Started, Trust, rate_limit,
};
use prost::Message;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that the hexadecimal digits of a text name. Other characters separate them.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(char::is_ascii_hexdigit).collect();
    let byte = |pair: &[char]| {
        u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("two hexadecimal digits")
    };
    digits.chunks(2).map(byte).collect()
}

fn previous() -> RequestKey {
    RequestKey { epoch_hi: 1, epoch_lo: 2, sequence: 299 }
}

fn attempt_failed() -> AttemptFailed {
    AttemptFailed {
        sequence: 300,
        endpoint: "127.0.0.1:8001".into(),
        status: 429,
        retry_after_ms: Some(2_000),
        pool: "chat".into(),
        ..AttemptFailed::default()
    }
}

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
        untrusted: true,
        requeued_from: Some(previous()),
        traceparent: "00-1-2-01".into(),
        target_model: "llama-a".into(),
        failed_attempt: Some(attempt_failed()),
        tenant_verified: true,
        credit_endpoint: "127.0.0.1:2".into(),
        sequences: 64,
        moved: true,
        client_retries: 2,
        background: true,
        pool: "chat".into(),
        gateway_subset: true,
    }
}

fn running() -> Running {
    Running {
        register: Some(Register { sequence: 9, ..Default::default() }),
        pool: "chat".into(),
        endpoint: "127.0.0.1:8001".into(),
        age_us: 5,
        started: true,
        first_token: true,
        prefill_endpoint: "127.0.0.1:8002".into(),
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
        running: vec![running()],
        envoy: 42,
        no_requeue: true,
        term: 8,
        probe: true,
        unreachable_term: 9,
        endpoints_digest: 1 << 60,
        pool: "chat".into(),
        clock_us: 1_000_000,
        picker: true,
    }
}

fn completed() -> Completed {
    Completed {
        sequence: 300,
        endpoint: "127.0.0.1:8001".into(),
        status: 200,
        attempts: 2,
        end: EndReason::ResetInsideAnswer.into(),
        first_token_us: Some(10),
        last_byte_us: Some(20),
        prompt_tokens: Some(30),
        cached_tokens: Some(0),
        output_tokens: Some(50),
        output_chunks: 60,
        text_bytes: Some(70),
        body_bytes: 80,
        ended_us: 90,
    }
}

fn source(from: SourceFrom) -> Source {
    Source { from: Some(from) }
}

fn policy() -> Policy {
    let table = ModelTable { rules: vec![ModelRule { glob: "chat-*".into(), value: "critical".into() }] };
    Policy {
        digest: "d1".into(),
        routes: vec![Route {
            path: "/v1/chat/completions".into(),
            api: Api::ChatCompletions.into(),
            ..Route::default()
        }],
        body_bytes_max: 1 << 25,
        identity: Some(Identity {
            fairness_id: vec![source(SourceFrom::Header("x-a".into()))],
            user: vec![source(SourceFrom::Body("user".into()))],
            priority: vec![source(SourceFrom::Model(table))],
            class: vec![source(SourceFrom::Metadata("ns/key".into()))],
            strict: vec![source(SourceFrom::Header("x-s".into()))],
            jump: vec![source(SourceFrom::Header("x-j".into()))],
            trust: Some(Trust {
                all: true,
                networks: vec![Network { address: vec![10, 0, 0, 0], prefix: 8 }],
            }),
            api_keys: Some(ApiKeys {
                headers: vec!["authorization".into()],
                required: true,
                forward: true,
                keys: vec![ApiKey { sha256: vec![7; 32], tenant: "acme".into() }],
            }),
        }),
        pools: vec![Pool {
            name: "chat".into(),
            models: vec!["llama-*".into()],
            hold_ms: 5_000,
            fallback: Fallback::Open.into(),
            ttl_ms: 30_000,
            no_endpoint_ttl_ms: 60_000,
            capacity_status: 429,
            endpoints: vec!["127.0.0.1:8001".into()],
            fallback_bound: Some(7),
            fallback_bound_in_tokens: true,
            prefix_hashes: true,
            first_token: true,
            requeue_on: Some(RequeueOn { connect: true, reset: true, statuses: vec![429, 503] }),
            include_usage: true,
            first_byte_ms: Some(30_000),
            idle_ms: Some(5_000),
            fallback_bound_in_sequences: true,
            is_default: true,
            keep_alive_ms: Some(15_000),
        }],
        others_pass: true,
        tracing: true,
        session_per_pool: true,
    }
}

fn rate_limit() -> RateLimit {
    RateLimit { unit: rate_limit::Unit::Requests.into(), limit: 100, remaining: 40, reset_ms: 6_000 }
}

fn events() -> Vec<Event> {
    vec![
        Event::Hello(hello()),
        Event::Register(register()),
        Event::Cancel(Cancel { sequence: 300 }),
        Event::Started(Started {
            sequence: 300,
            endpoint: "127.0.0.1:8001".into(),
            status: 200,
            attempts: 2,
            after_us: 1_000,
            first_token: true,
        }),
        Event::Completed(completed()),
        Event::Refused(Refused {
            sequence: 300,
            code: "queue_timeout".into(),
            outcome: "expired_ttl".into(),
            status: 503,
            model: "llama-8b".into(),
            request_id: "r-1".into(),
            registered: true,
            requeued_from: Some(previous()),
            requeues: 2,
        }),
        Event::Heartbeat(Heartbeat::default()),
        Event::Bye(Bye {}),
        Event::CreditReturned(CreditReturned { pool: "chat".into(), credit: 3 }),
        Event::AttemptFailed(attempt_failed()),
    ]
}

fn report() -> Admitted {
    Admitted { running: Some(running()), credit: 3, completed: Some(completed()) }
}

fn commands() -> Vec<Kind> {
    vec![
        Kind::HelloAck(HelloAck { version: 1, term: 1_700_000_000_000 }),
        Kind::Policy(policy()),
        Kind::Grant(Grant {
            sequence: 300,
            pool: "chat".into(),
            endpoints: vec!["127.0.0.1:8001".into(), "127.0.0.1:8002".into()],
            outcome: "dispatched".into(),
            queue_us: 12_345,
            saturation_milli: 420,
            target_model: "llama-a".into(),
            requeue: true,
            rate_limit: Some(rate_limit()),
            prefill_endpoint: "127.0.0.1:8003".into(),
            ..Grant::default()
        }),
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
            rate_limit: Some(rate_limit()),
        }),
        Kind::Endpoints(Endpoints {
            pool: "chat".into(),
            ready: vec!["127.0.0.1:8001".into()],
            fallback_bound: Some(7),
            keep_ready: true,
        }),
        Kind::Bye(Bye {}),
        Kind::Credit(Credit {
            pool: "chat".into(),
            id: 3,
            ttl_ms: 2_000,
            endpoints: vec![EndpointCredit { address: "10.0.0.1:8000".into(), requests: 4 }],
            prompt_bytes_max: 1_024,
            saturation_milli: 250,
            requeue: true,
        }),
        Kind::Recall(Recall { pool: "chat".into(), credit: 3 }),
        Kind::Role(Role { term: 8, leader: "127.0.0.1:9190".into(), here: true }),
        Kind::ModelList(ModelList {
            models: vec![ListedModel { id: "m".into(), object: r#"{"id":"m"}"#.into() }],
        }),
        Kind::Evict(Evict {
            answer: Some(Reject {
                sequence: 300,
                status: 429,
                code: "evicted".into(),
                outcome: "evicted".into(),
                message: "full".into(),
                retry_after_ms: Some(1_500),
                ..Reject::default()
            }),
        }),
    ]
}

/// Frames of a filter: of each event, and of reports with an event and without one.
fn filter_frames() -> Vec<FilterFrame> {
    let frame = |admitted, event| FilterFrame { seq: 5, ack: 6, admitted, event };
    let mut frames: Vec<FilterFrame> = events().into_iter().map(|event| frame(vec![], Some(event))).collect();
    frames.push(frame(vec![report()], None));
    frames.push(frame(vec![report(), Admitted::default()], Some(Event::Heartbeat(Heartbeat::default()))));
    frames
}

/// Frames of a companion, of each command.
fn companion_frames() -> Vec<CompanionFrame> {
    let frame = |kind| CompanionFrame { seq: 8, ack: 9, commands: vec![Command { kind: Some(kind) }] };
    commands().into_iter().map(frame).collect()
}

const FILTER_FRAMES: &[&str] = &[
    "080510061aa40309010000000000000011ffffffffffffffff180720012801320264313a046564676540034801529e0208ac \
     0210e0c65b1a03722d3120052a086c6c616d612d386230802038004001488827520461636d655801620275316a0863726974 \
     6963616c72056261746368780380013c8a010831302e312e322e3392010b3132372e302e302e313a3192010b3132372e302e \
     302e313a329a010b3132372e302e302e313a31a2010473706f74a801d00fb001f403ba01100100000000000000ffffffffff \
     ffffffc00102d00101d80101e00101ea011509010000000000000011020000000000000018ab02f2010930302d312d322d30 \
     31fa01076c6c616d612d6182021f08ac02120e3132372e302e302e313a3830303118ad0320d00f2a04636861748802019202 \
     0b3132372e302e302e313a32980240a00201a80202b00201ba020463686174c002015a300a0208091204636861741a0e3132 \
     372e302e302e313a383030312005280130013a0e3132372e302e302e313a38303032612a0000000000000068017008780180 \
     01098901000000000000001092010463686174a001c0843da80101",
    "08051006229e0208ac0210e0c65b1a03722d3120052a086c6c616d612d386230802038004001488827520461636d65580162 \
     0275316a08637269746963616c72056261746368780380013c8a010831302e312e322e3392010b3132372e302e302e313a31 \
     92010b3132372e302e302e313a329a010b3132372e302e302e313a31a2010473706f74a801d00fb001f403ba011001000000 \
     00000000ffffffffffffffffc00102d00101d80101e00101ea011509010000000000000011020000000000000018ab02f201 \
     0930302d312d322d3031fa01076c6c616d612d6182021f08ac02120e3132372e302e302e313a3830303118ad0320d00f2a04 \
     6368617488020192020b3132372e302e302e313a32980240a00201a80202b00201ba020463686174c00201",
    "080510062a0308ac02",
    "08051006321d08ac02120e3132372e302e302e313a3830303118c801200228e8073001",
    "080510063a2c08ac02120e3132372e302e302e313a3830303118c80120022805300a3814401e48005032583c60466850705a",
    "08051006424c08ac02120d71756575655f74696d656f75741a0b657870697265645f74746c20f7032a086c6c616d612d3862 \
     3203722d313801421509010000000000000011020000000000000018ab024802",
    "080510064a00",
    "080510065200",
    "0805100662080a04636861741003",
    "080510067a1f08ac02120e3132372e302e302e313a3830303118ad0320d00f2a0463686174",
    "080510065a620a300a0208091204636861741a0e3132372e302e302e313a383030312005280130013a0e3132372e302e302e \
     313a3830303210031a2c08ac02120e3132372e302e302e313a3830303118c80120022805300a3814401e48005032583c6046 \
     6850705a",
    "080510064a005a620a300a0208091204636861741a0e3132372e302e302e313a383030312005280130013a0e3132372e302e \
     302e313a3830303210031a2c08ac02120e3132372e302e302e313a3830303118c80120022805300a3814401e48005032583c \
     60466850705a5a00",
];

const COMPANION_FRAMES: &[&str] = &[
    "080810091a0b0a0908011080d095ffbc31",
    "080810091a94021291020a02643112180a142f76312f636861742f636f6d706c6574696f6e7310011880808010228c010a05 \
     0a03782d6112061204757365721a1622140a120a06636861742d2a1208637269746963616c22081a066e732f6b65792a050a \
     03782d7332050a03782d6a3a0c080112080a040a0000001008423d0a0d617574686f72697a6174696f6e1001180122280a20 \
     0707070707070707070707070707070707070707070707070707070707070707120461636d652a570a046368617412076c6c \
     616d612d2a188827200128b0ea0130e0d40338ad03420e3132372e302e302e313a3830303148075001580160016a0a080110 \
     011a04ad03f703700178b0ea0180018827c00101c80101d0019875300138014001",
    "080810091a641a6208ac021204636861741a0e3132372e302e302e313a383030311a0e3132372e302e302e313a3830303222 \
     0a6469737061746368656428b96030a4033a076c6c616d612d6140014a0908011064182820f02eb2010e3132372e302e302e \
     313a38303033",
    "080810091a44224208ac0210f7031a0a71756575655f66756c6c221372656a65637465645f71756575655f66756c6c2a0466 \
     756c6c30dc0b3801400748e807520908011064182820f02e",
    "080810091a1c2a1a0a0463686174120e3132372e302e302e313a3830303118072001",
    "080810091a023200",
    "080810091a283a260a0463686174100318d00f22110a0d31302e302e302e313a38303030100428800830fa013801",
    "080810091a0a42080a04636861741003",
    "080810091a165a140808120e3132372e302e302e313a393139301801",
    "080810091a1362110a0f0a016d120a7b226964223a226d227d",
    "080810091a256a230a2108ac0210ad031a07657669637465642207657669637465642a0466756c6c30dc0b",
];

fn assert_golden<M: Message + Default + PartialEq + std::fmt::Debug>(frames: &[M], golden: &[&str]) {
    assert_eq!(frames.len(), golden.len());
    for (frame, golden) in frames.iter().zip(golden) {
        let golden = bytes(golden);
        assert_eq!(hex(&frame.encode_to_vec()), hex(&golden), "{frame:?}");
        assert_eq!(M::decode(&*golden).as_ref(), Ok(frame));
    }
}

#[test]
fn filter_frames_encode_and_decode_unchanged() {
    assert_golden(&filter_frames(), FILTER_FRAMES);
}

#[test]
fn companion_frames_encode_and_decode_unchanged() {
    assert_golden(&companion_frames(), COMPANION_FRAMES);
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
