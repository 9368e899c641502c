//! Cached tokens: the longest prefix of a prompt that one of the request's endpoints has computed, taken at registration.

use penstock_control::EstimatedTokens;
use penstock_engine::policy::{Bucket, Class, ClassSet, CostUnit, Policy, Scorers};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// A prompt of 4,000 tokens, at four bytes each. It reaches 12 offsets of prefix hashes; the last is at 11,585 bytes.
const PROMPT_BYTES: u64 = 16_000;
const HASHES: u64 = 12;
/// 11,585 of 16,000 bytes.
const CACHED: u32 = 2_896;

/// Classes by the uncached tokens of a prompt, with these quanta.
fn by_bucket(cached: u64, uncached: u64) -> ClassSet {
    let class = |name: &str, quantum| Class {
        family: "standard".into(),
        bucket: Some(name.into()),
        ..Class::new(name, quantum)
    };
    let bucket = |name: &str, min_tokens| Bucket { min_tokens, name: name.into() };
    ClassSet {
        default_family: None,
        buckets: vec![bucket("cached", 0), bucket("uncached", 3_072)],
        classes: vec![class("cached", cached), class("uncached", uncached)],
    }
}

/// A world with these servers, whose pool has the classes of [`by_bucket`] and no scorer of prefixes.
fn world(servers: &[&str]) -> World {
    let mut settings = settings_of(servers);
    let policy = &mut settings.pools[0].policy;
    policy.classes = vec![by_bucket(2_048, 512)];
    policy.scheduler.prefix = 0.0;
    policy.queue.total_capacity = 1_000;
    policy.queue.flow_capacity = 1_000;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    world
}

/// A request whose prompt has its first `shared` hashes in common with all prompts of this `text`.
fn asks(sequence: u64, text: u64, shared: u64) -> wire::Register {
    let hash = |index: u64| {
        let unique = if index < shared { 0 } else { sequence };
        (text << 48) | (unique << 16) | index
    };
    wire::Register {
        prompt_bytes: PROMPT_BYTES,
        prefix_hashes: (0..HASHES).map(hash).collect(),
        request_id: format!("r{sequence}"),
        ..register(sequence)
    }
}

fn answered(sequence: u64, endpoint: &str) -> Message {
    Message::Completed(wire::Completed {
        sequence,
        endpoint: endpoint.into(),
        status: 200,
        end: wire::EndReason::Served.into(),
        prompt_tokens: Some(PROMPT_BYTES / 4),
        output_tokens: Some(1),
        ..Default::default()
    })
}

/// [`answered`] by a server that reports so many cached tokens.
fn answered_cached(sequence: u64, endpoint: &str, cached: u32) -> Message {
    let Message::Completed(completed) = answered(sequence, endpoint) else {
        panic!("a completion");
    };
    Message::Completed(wire::Completed { cached_tokens: Some(cached.into()), ..completed })
}

/// The class and the tokens of a request that waits or runs.
fn seen(world: &World, sequence: u64) -> (String, EstimatedTokens) {
    let status = world.control.request(world.now, &format!("r{sequence}")).expect("the request hasn't ended");
    let tokens = status.labels.tokens.expect("it is registered");
    (status.class.into(), tokens)
}

fn cached(world: &World, sequence: u64) -> u32 {
    seen(world, sequence).1.cached
}

#[test]
fn a_prompt_that_was_sent_before_is_in_the_cached_bucket() {
    let mut world = world(&[SERVER]);
    world.send(1, Message::Register(asks(1, 1, HASHES)));
    let tokens = |cached| EstimatedTokens { prompt: 4_000, cached, expected_output: 256 };
    assert_eq!(seen(&world, 1), ("uncached".to_owned(), tokens(0)));
    // The first request computes the prompt while the second one waits.
    world.send(1, Message::Register(asks(2, 1, HASHES)));
    assert_eq!(seen(&world, 2), ("cached".to_owned(), tokens(CACHED)));
    world.send(1, Message::Register(asks(3, 2, HASHES)));
    assert_eq!(seen(&world, 3), ("uncached".to_owned(), tokens(0)));
    // The number is taken once: the third request keeps it while another one computes its prompt.
    world.send(1, answered(1, SERVER));
    world.send(1, Message::Register(asks(4, 1, 4)));
    assert_eq!(seen(&world, 4).1.cached, 724 / 4, "four hashes cover 724 bytes");
    assert_eq!(seen(&world, 3).1.cached, 0);
}

#[test]
fn only_eligible_endpoints_count() {
    let mut world = world(&[SERVER, SECOND]);
    let pinned = |sequence, pin: &str| {
        Message::Register(wire::Register { pin: pin.into(), ..asks(sequence, 1, HASHES) })
    };
    world.send(1, pinned(1, SERVER));
    world.send(1, pinned(2, SECOND));
    assert_eq!((cached(&world, 1), cached(&world, 2)), (0, 0));
    world.send(1, answered(1, SERVER));
    world.send(1, answered(2, SECOND));
    world.send(1, pinned(3, SERVER));
    assert_eq!(cached(&world, 3), CACHED);
    world.send(1, Message::Register(asks(4, 1, HASHES)));
    assert_eq!(cached(&world, 4), CACHED);
}

/// What the next requests of one prompt count as cached at each server, after so many answers of each with these cached tokens.
fn learned(answers: u64, reported: [Option<u32>; 2]) -> [u32; 2] {
    let mut world = world(&[SERVER, SECOND]);
    let servers = [SERVER, SECOND];
    let mut sequence = 0;
    let mut ask = |world: &mut World, server: &str| {
        sequence += 1;
        let pinned = wire::Register { pin: server.into(), ..asks(sequence, 1, HASHES) };
        world.send(1, Message::Register(pinned));
        sequence
    };
    for (server, reported) in servers.into_iter().zip(reported) {
        // The first answer of a server computes the prompt.
        for answer in 0..=answers {
            let sequence = ask(&mut world, server);
            world.send(
                1,
                match reported.filter(|_| answer > 0) {
                    Some(cached) => answered_cached(sequence, server, cached),
                    None => answered(sequence, server),
                },
            );
        }
    }
    servers.map(|server| {
        let sequence = ask(&mut world, server);
        let (class, tokens) = seen(&world, sequence);
        let is_cached = tokens.prompt - tokens.cached < 3_072;
        assert_eq!(class, if is_cached { "cached" } else { "uncached" });
        world.send(1, answered(sequence, server));
        tokens.cached
    })
}

#[test]
fn each_server_s_answers_tell_how_much_it_caches() {
    assert_eq!(learned(0, [None, None]), [CACHED; 2], "it is believed at first");
    assert_eq!(learned(16, [Some(CACHED), None]), [CACHED, 0]);
    assert_eq!(learned(16, [Some(4_000), Some(CACHED / 2)]), [CACHED, CACHED / 2]);
    let [one, other] = learned(8, [Some(0), None]);
    assert_eq!(one, other, "a server that reports none has computed all");
    assert_eq!(one, CACHED / 2);
}

#[test]
fn the_load_of_a_prompt_is_that_at_its_own_server() {
    let mut world = with_prefill_threshold();
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    // The server computes everything, however often it gets the same prompt, so two such prompts are the most in prefill.
    for sequence in 1..=40 {
        world.send(1, Message::Register(asks(sequence, 1, HASHES)));
        world.send(1, answered(sequence, SERVER));
    }
    world.take();
    for sequence in 41..=44 {
        world.send(1, Message::Register(asks(sequence, 1, HASHES)));
    }
    assert_eq!(world.take().granted(), [41, 42]);
}

#[test]
fn models_do_not_share_a_cache() {
    let mut world = world(&[SERVER]);
    world.send(1, Message::Register(asks(1, 1, HASHES)));
    let other = wire::Register { model: "llama-70b".into(), ..asks(2, 1, HASHES) };
    world.send(1, Message::Register(other));
    assert_eq!(cached(&world, 2), 0);
}

#[test]
fn prefixes_are_kept_only_where_the_policy_or_a_scorer_uses_them() {
    let sent_twice = |change: fn(&mut Policy)| {
        let mut settings = settings();
        let policy = &mut settings.pools[0].policy;
        policy.scheduler = Scorers { prefix: 0.0, ..Scorers::default() };
        change(policy);
        let mut world = World::with(settings);
        world.greet(1, filter(1), Vec::new(), Vec::new());
        world.send(1, Message::Register(asks(1, 1, HASHES)));
        world.send(1, Message::Register(asks(2, 1, HASHES)));
        cached(&world, 2)
    };
    assert_eq!(sent_twice(|_| ()), CACHED, "the cost counts uncached tokens");
    assert_eq!(sent_twice(|policy| policy.flows.cost = CostUnit::Requests), 0);
    assert_eq!(sent_twice(|policy| policy.weights.input = 0.0), 0);
    let by_scorer = |policy: &mut Policy| {
        policy.flows.cost = CostUnit::Requests;
        policy.scheduler.prefix = 1.0;
    };
    assert_eq!(sent_twice(by_scorer), CACHED);
}

#[test]
fn cached_tokens_that_the_server_reports_settle_the_cost() {
    let settled = |reported: Option<u32>| {
        let mut world = world(&[SERVER]);
        world.send(1, Message::Register(asks(1, 1, HASHES)));
        world.send(1, answered(1, SERVER));
        world.send(1, Message::Register(asks(2, 1, HASHES)));
        let before = world.control.status(world.now).pools[0].served[0].1;
        world.send(
            1,
            match reported {
                Some(cached) => answered_cached(2, SERVER, cached),
                None => answered(2, SERVER),
            },
        );
        world.control.status(world.now).pools[0].served[0].1 - before
    };
    // One output token counts twice.
    assert_eq!(settled(Some(3_984)), 4_000 - 3_984 + 2);
    assert_eq!(settled(None), 4_000 + 2, "a server that reports none has computed all");
}

/// A world whose server takes ten requests, of which at most 4,000 uncached tokens may be in prefill.
fn with_prefill_threshold() -> World {
    let mut settings = settings();
    let policy = &mut settings.pools[0].policy;
    policy.gate = penstock_engine::policy::Gate::Bounded {
        unit: penstock_engine::policy::StockUnit::Requests,
        lower: penstock_engine::units::Decimal::whole(10),
        upper: penstock_engine::units::Decimal::whole(10),
        watermark: penstock_engine::units::Decimal::whole(10),
    };
    policy.classes = vec![ClassSet {
        classes: vec![Class { busy_tokens: Some(4_000), ..Class::new("all", 1_000) }],
        ..ClassSet::default()
    }];
    World::with(settings)
}

fn begins(sequence: u64) -> Message {
    Message::Started(wire::Started {
        sequence,
        endpoint: SERVER.into(),
        status: 200,
        first_token: true,
        ..Default::default()
    })
}

#[test]
fn a_first_token_ends_the_prefill_of_its_prompt() {
    let mut world = with_prefill_threshold();
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.take();
    for sequence in 1..=4 {
        world.send(1, Message::Register(asks(sequence, sequence, HASHES)));
    }
    assert_eq!(world.take().granted(), [1, 2], "4,000 tokens are not above 4,000");
    world.send(1, started(1, SERVER, 0));
    assert!(world.take().granted().is_empty(), "headers are no first byte");
    world.send(1, begins(1));
    assert_eq!(world.take().granted(), [3]);
    world.send(1, begins(1));
    assert!(world.take().granted().is_empty());
    world.send(1, answered(2, SERVER));
    assert_eq!(world.take().granted(), [4]);
}

#[test]
fn a_hello_says_whose_prompts_are_in_prefill() {
    let granted = |first_token| {
        let mut world = with_prefill_threshold();
        let running = [1, 2].map(|sequence| wire::Running {
            first_token,
            ..runs_as(asks(sequence, sequence, HASHES), SERVER)
        });
        world.greet(1, filter(1), Vec::new(), running.into());
        world.send(1, Message::Register(asks(3, 3, HASHES)));
        world.take().granted()
    };
    assert_eq!(granted(true), [3]);
    assert!(granted(false).is_empty());
}

#[test]
fn a_new_companion_knows_the_prefixes_of_running_requests_only() {
    let taken_over = |running: &[u64]| {
        let mut settings = settings();
        settings.pools[0].policy.classes = vec![by_bucket(2_048, 512)];
        let mut world = World::with(settings);
        let running = running.iter().map(|sequence| runs_as(asks(*sequence, 1, HASHES), SERVER));
        let waiting = wire::Register { age_us: 1_000_000, ..asks(9, 1, HASHES) };
        world.greet(1, filter(1), vec![waiting], running.collect());
        seen(&world, 9)
    };
    let (class, tokens) = taken_over(&[1]);
    assert_eq!((class.as_str(), tokens.cached), ("cached", CACHED));
    let (class, tokens) = taken_over(&[]);
    assert_eq!((class.as_str(), tokens.cached), ("uncached", 0));
}

#[test]
fn classes_share_uncached_tokens_by_their_quanta() {
    let mut world = world(&[SERVER]);
    let mut sequence = 1;
    world.send(1, Message::Register(asks(sequence, 1, HASHES)));
    // Odd requests repeat one prompt, and even ones have a prompt that no other request has.
    let mut next = |world: &mut World, is_repeated: bool| {
        sequence += 1 + u64::from((sequence % 2 == 1) == is_repeated);
        let shared = if is_repeated { HASHES } else { 0 };
        world.send(1, Message::Register(asks(sequence, 1, shared)));
    };
    for _ in 0..20 {
        next(&mut world, true);
        next(&mut world, false);
    }
    world.take();
    world.send(1, answered(1, SERVER));
    let mut uncached = [0, 0];
    for _ in 0..1_000 {
        let granted = world.take().granted();
        let [granted] = granted[..] else { panic!("one request at a time: {granted:?}") };
        let is_repeated = granted % 2 == 1;
        let (class, tokens) = seen(&world, granted);
        assert_eq!(class, if is_repeated { "cached" } else { "uncached" });
        uncached[usize::from(!is_repeated)] += tokens.prompt - tokens.cached;
        next(&mut world, is_repeated);
        world.send(1, answered_cached(granted, SERVER, tokens.cached));
    }
    let share = uncached[0] as f64 / (uncached[0] + uncached[1]) as f64;
    let exact = 2_048.0 / (2_048.0 + 512.0);
    assert!((share - exact).abs() <= 0.01 * exact, "{uncached:?}: {share}");
}
