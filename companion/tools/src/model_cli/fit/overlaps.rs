//! The requests of a file that ran at the same time as each request, visited in the order in which requests ended.

use std::collections::BTreeMap;

use penstock_model::observation::Decode;
use penstock_model::overlap::{self, Span};

use super::recording::Ended;

/// First tokens within this time after a request's last token can belong to the same, last iteration.
const LAST_ITERATION_MS: f64 = 2.0;

/// An event of a request. Events of the same time are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    FirstToken,
    End,
}

#[derive(Default)]
struct EndpointRequests {
    /// All served requests, in order of their first tokens.
    served: Vec<u32>,
    /// The requests that decode at the current time.
    decoding: Vec<u32>,
}

/// Visits the requests of a file in order of time.
pub(super) struct Overlaps<'a> {
    requests: &'a [Ended],
    events: std::vec::IntoIter<(Event, u32)>,
    endpoints: BTreeMap<u32, EndpointRequests>,
    /// For each request, its index in `served` of its endpoint.
    positions: Vec<u32>,
    /// For each decoding request, the requests that decoded when its first token came.
    decoding_before: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Overlaps<'a> {
    pub(super) fn new(requests: &'a [Ended]) -> Self {
        let numbers = || (0_u32..).zip(requests);
        let mut events = Vec::with_capacity(2 * requests.len());
        let mut endpoints: BTreeMap<u32, EndpointRequests> = BTreeMap::new();
        for (number, request) in numbers() {
            if was_served(request) {
                events.push((request.first_ms, Event::FirstToken, number));
                endpoints.entry(request.endpoint).or_default().served.push(number);
            }
            events.push((request.last_ms, Event::End, number));
        }
        events.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut positions = vec![0; requests.len()];
        for endpoint in endpoints.values_mut() {
            // The sort is stable, so requests with equal times stay in the order of the file.
            let first_ms = |number: u32| requests[number as usize].first_ms;
            endpoint.served.sort_by(|a, b| first_ms(*a).total_cmp(&first_ms(*b)));
            for (position, number) in (0..).zip(&endpoint.served) {
                positions[*number as usize] = position;
            }
        }
        let events: Vec<_> = events.into_iter().map(|(_, event, number)| (event, number)).collect();
        Self { requests, events: events.into_iter(), endpoints, positions, decoding_before: BTreeMap::new() }
    }

    /// The next request that ends, and the load during its decoding; `None` if it has no time between tokens.
    /// `prompt_ms` returns the time that a prompt token adds to an iteration.
    pub(super) fn next(&mut self, prompt_ms: impl Fn() -> f64) -> Option<(usize, Option<Decode>)> {
        loop {
            let (event, number) = self.events.next()?;
            let request = &self.requests[number as usize];
            let endpoint = self.endpoints.entry(request.endpoint).or_default();
            match event {
                Event::FirstToken => {
                    if has_time_between_tokens(request) {
                        self.decoding_before.insert(number, endpoint.decoding.clone());
                    }
                    endpoint.decoding.push(number);
                }
                Event::End => {
                    if let Some(index) = endpoint.decoding.iter().position(|other| *other == number) {
                        endpoint.decoding.swap_remove(index);
                    }
                    let before = self.decoding_before.remove(&number);
                    let decode = before.and_then(|before| self.decode(number, before, prompt_ms()));
                    return Some((number as usize, decode));
                }
            }
        }
    }

    /// The load during a request's decoding. `overlapping` starts with the requests that decoded at its first token.
    fn decode(&self, number: u32, mut overlapping: Vec<u32>, prompt_ms: f64) -> Option<Decode> {
        let request = &self.requests[number as usize];
        let position = |number: u32| self.positions[number as usize];
        let later = &self.endpoints.get(&request.endpoint)?.served[position(number) as usize..];
        let until_ms = request.last_ms + LAST_ITERATION_MS;
        let starts_in_time = |other: &&u32| self.requests[**other as usize].first_ms <= until_ms;
        // The first of the later requests is the request itself.
        overlapping.extend(later.iter().take_while(starts_in_time));
        overlapping.sort_unstable_by_key(|other| position(*other));
        let own = overlapping.iter().position(|other| *other == number)?;
        let mut spans: Vec<Span> =
            overlapping.into_iter().map(|other| span(&self.requests[other as usize], request)).collect();
        overlap::decode_conditions(&mut spans, own, prompt_ms)
    }
}

/// A request without output and without a known first token was not served.
fn was_served(request: &Ended) -> bool {
    request.first_known || request.output > 0.0
}

fn has_time_between_tokens(request: &Ended) -> bool {
    request.first_known && request.output >= 2.0 && request.last_ms > request.first_ms
}

/// The time of `other` as seen from `request`: uncertain if an end of `request` may be before or after the first token
/// of `other`.
fn span(other: &Ended, request: &Ended) -> Span {
    let first_token = other.first_min_ms..other.first_max_ms;
    let uncertain = [request.first_ms, request.last_ms].iter().any(|end| first_token.contains(end));
    Span {
        first_ms: other.first_ms,
        last_ms: other.last_ms,
        input: other.input,
        resident: other.input,
        output: other.output.max(1.0),
        uncertain,
        prompts_computed_ms: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(endpoint: u32, first_ms: f64, last_ms: f64, input: f64, output: f64) -> Ended {
        Ended {
            dispatched_ms: first_ms - 20.0,
            first_ms,
            first_min_ms: first_ms,
            first_max_ms: first_ms,
            first_known: true,
            last_ms,
            input,
            output,
            endpoint,
        }
    }

    /// In the order of the ends: the request's number, and the batch and resident tokens of its load.
    fn visit(requests: &[Ended]) -> Vec<(usize, Option<(f64, f64)>)> {
        let mut overlaps = Overlaps::new(requests);
        let mut visited = Vec::new();
        while let Some((number, decode)) = overlaps.next(|| 0.0) {
            visited.push((number, decode.map(|decode| (decode.batch, decode.resident))));
        }
        visited
    }

    #[test]
    fn request_that_runs_alone_has_a_batch_of_one() {
        // Ten tokens after the first, so the cache holds about the mean of 101 to 111 tokens.
        let visited = visit(&[request(0, 0.0, 100.0, 100.0, 11.0)]);
        let (batch, resident) = visited[0].1.expect("a load");
        assert_eq!(batch, 1.0);
        assert!((resident - 105.5).abs() < 1.0, "{resident}");
    }

    #[test]
    fn all_requests_of_the_same_endpoint_count_whenever_they_end() {
        let requests = [
            request(0, 0.0, 1_000.0, 100.0, 101.0),
            // One request overlaps half of the time from before, and one ends long after.
            request(0, -400.0, 500.0, 100.0, 91.0),
            request(0, -100.0, 9_000.0, 100.0, 911.0),
            request(1, 0.0, 1_000.0, 100.0, 101.0),
            // A prompt of 500 tokens during that time, for a single output token.
            request(0, 250.0, 250.0, 500.0, 1.0),
        ];
        let visited = visit(&requests);
        let order: Vec<usize> = visited.iter().map(|(number, _)| *number).collect();
        assert_eq!(order, [4, 1, 0, 3, 2]);
        assert_eq!(visited[0].1, None, "one token has no time between tokens");
        let batch = |index: usize| visited[index].1.expect("a load").0;
        assert!((batch(2) - (1.0 + 0.5 + 1.0 + 5.0)).abs() < 0.02, "{}", batch(2));
        assert_eq!(batch(3), 1.0, "alone at its endpoint");
    }

    #[test]
    fn request_that_was_never_served_is_no_load() {
        let mut refused = request(0, 0.0, 1_000.0, 5_000.0, 0.0);
        refused.first_known = false;
        let visited = visit(&[refused, request(0, 0.0, 1_000.0, 100.0, 101.0)]);
        assert_eq!(visited[0], (0, None));
        assert_eq!(visited[1].1.expect("a load").0, 1.0);
    }
}
