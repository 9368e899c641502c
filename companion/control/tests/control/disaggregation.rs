//! Requests whose prompt one endpoint computes and another one answers: which of the two a failure counts against.

use penstock_control::{Event, Settings};
use penstock_engine::input::Role;
use penstock_engine::policy::Gate;
use penstock_engine::units::Decimal;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// [`SERVER`] decodes and [`SECOND`] computes long prompts for it. Each takes ten requests.
fn apart() -> Settings {
    let mut settings = settings_of(&[SERVER, SECOND]);
    let pool = &mut settings.pools[0];
    pool.policy.gate = Gate::requests(Decimal::whole(10));
    pool.policy.min_uncached_tokens = Some(50);
    pool.endpoints[0].role = Role::Decode;
    pool.endpoints[1].role = Role::Prefill;
    settings
}

fn world() -> World {
    let mut world = World::with(apart());
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

/// Sends the request, and returns the endpoint that computes its prompt, by name if it isn't the one that answers.
fn prefills(world: &mut World, sequence: u64) -> String {
    world.send(1, Message::Register(register(sequence)));
    let taken = world.take();
    let [(1, grant)] = taken.grants()[..] else { panic!("{taken:?}") };
    assert_eq!(grant.endpoints, [SERVER]);
    grant.prefill_endpoint.clone()
}

fn answered(sequence: u64, status: u32) -> Message {
    let Message::Completed(served) = completed(sequence) else { panic!("a completion") };
    Message::Completed(wire::Completed { status, prompt_tokens: None, output_tokens: None, ..served })
}

#[test]
fn after_a_refusal_the_next_prompt_stays_with_the_endpoint_that_answers() {
    // A gateway that can't send a request again passes each of these on to its client, so a `prefill` endpoint that refuses every prompt must
    // not get every prompt.
    for status in [400, 404, 429] {
        let mut world = world();
        for pair in 0..10 {
            let (shared, alone) = (2 * pair + 1, 2 * pair + 2);
            assert_eq!(prefills(&mut world, shared), SECOND, "{status}");
            world.send(1, answered(shared, status));
            assert_eq!(prefills(&mut world, alone), "", "{status}");
            world.send(1, completed(alone));
        }
        assert_eq!(world.take().marked, [], "{status}");
    }
}

#[test]
fn the_one_that_answers_is_tried_alone_after_a_failure_of_both() {
    let mut world = world();
    assert_eq!(prefills(&mut world, 1), SECOND);
    world.send(1, answered(1, 500));
    assert_eq!(prefills(&mut world, 2), "", "alone");
    world.send(1, completed(2));
    assert_eq!(prefills(&mut world, 3), SECOND);
}

#[test]
fn a_prompt_counts_at_its_endpoint_before_discovery_lists_that() {
    let listed = apart();
    let mut unlisted = listed.clone();
    unlisted.pools[0].endpoints.clear();
    let mut world = World::with(unlisted);
    let runs = wire::Running { prefill_endpoint: SECOND.into(), ..runs(1) };
    world.open_session(1, 1, Vec::new(), vec![runs]);
    world.handle(Event::Settings(Box::new(listed)));
    assert_eq!(stocks(&world), [(SERVER.into(), 1), (SECOND.into(), 1)]);
    world.send(1, first_token(1));
    assert_eq!(stocks(&world), [(SERVER.into(), 1), (SECOND.into(), 0)]);
}

/// The stock at each endpoint.
fn stocks(world: &World) -> Vec<(String, u64)> {
    let status = world.control.status(world.now);
    let pool = &status.pools[0];
    let endpoints = pool.snapshot.endpoints.iter();
    let mut stocks: Vec<_> =
        endpoints.map(|endpoint| (pool.address(endpoint.id).to_owned(), endpoint.stock)).collect();
    stocks.sort_unstable();
    stocks
}

fn first_token(sequence: u64) -> Message {
    let Message::Started(started) = started(sequence, SERVER, 1) else { panic!("a start") };
    Message::Started(wire::Started { first_token: true, ..started })
}
