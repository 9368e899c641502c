//! Prefill apart from decoding: bounds of both roles, who computes prompts, and what remains when one role is full.

use super::*;

const BOUND: f64 = 8.0;

/// Two servers for prompts and two that answer, each with a bound of 8.
fn roles() -> Vec<ServerSpec> {
    let mut servers = servers(4, 0.05);
    for (index, server) in servers.iter_mut().enumerate() {
        server.role = if index < 2 { Role::Prefill } else { Role::Decode };
    }
    servers
}

/// Half of the requests have prompts of 4,000 tokens, the others of 100.
fn mix() -> Mix {
    let kind = |name, input| RequestKind { name, input, output: 64.0, spread: 0.2 };
    Mix { name: "half", parts: vec![(0.5, kind("long", 4_000.0)), (0.5, kind("short", 100.0))] }
}

fn record(servers: Vec<ServerSpec>, rate: f64) -> Record {
    let mut scenario = Scenario::new(servers, GateBy::Watermark(BOUND), Arrivals::steady(mix(), rate));
    scenario.policy.min_uncached_tokens = Some(1_000);
    run(&scenario.until_served(3_000)).unwrap()
}

/// The part of the served requests of a kind at the servers for prompts.
fn whole_at_prefill(record: &Record, kind: &str) -> f64 {
    let of_kind = || record.finished.iter().filter(|finished| &*finished.kind == kind);
    of_kind().filter(|finished| finished.server < 2).count() as f64 / of_kind().count() as f64
}

/// The part of the long prompts that were computed apart.
fn share_elsewhere(record: &Record) -> f64 {
    let long = record.finished.iter().filter(|finished| &*finished.kind == "long").count();
    record.prefilled_elsewhere as f64 / long as f64
}

#[test]
fn long_prompts_are_computed_apart_while_there_is_room() {
    let record = record(roles(), 6.0);
    assert!(record.peaks.iter().all(|peak| *peak <= 8), "{:?}", record.peaks);
    let share = share_elsewhere(&record);
    assert!((0.95..1.05).contains(&share), "{share}");
    assert!(whole_at_prefill(&record, "short") < 0.01);
}

#[test]
fn neither_role_exceeds_its_bound_when_more_comes_than_fits() {
    let record = record(roles(), 200.0);
    assert_eq!(record.peaks.len(), 4);
    assert!(record.peaks.iter().all(|peak| *peak <= 8), "{:?}", record.peaks);
    // Servers for prompts take whole requests too, and keep half of their places for prompts.
    let whole = whole_at_prefill(&record, "long");
    assert!(whole > 0.05, "{whole}");
    let share = share_elsewhere(&record);
    assert!(share > 0.5, "{share}");
}

#[test]
fn without_servers_that_decode_those_for_prompts_do_both() {
    let prefill = roles().into_iter().take(2).collect();
    let record = record(prefill, 3.0);
    assert_eq!((record.prefilled_elsewhere, record.rejected), (0, 0));
    assert!(record.served >= 3_000);
}

#[test]
fn without_servers_for_prompts_those_that_decode_do_both() {
    let decode = roles().into_iter().skip(2).collect();
    let record = record(decode, 3.0);
    assert_eq!((record.prefilled_elsewhere, record.rejected), (0, 0));
}
