//! What ran beside each request of a file, told in the order in which requests ended.

use std::collections::BTreeMap;

use penstock_model::observation::Decode;
use penstock_model::overlap::{self, Span};

use super::requests::Ended;

/// First tokens up to so much after a request's last one may belong to its last iteration.
const LAST_ITERATION_MS: f64 = 2.0;

/// What happens to a request, in the order it does where moments are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begins,
    Ends,
}

/// One endpoint.
#[derive(Default)]
struct Here {
    /// All that were served there, in order of their first tokens.
    all: Vec<u32>,
    /// Those that decode.
    running: Vec<u32>,
}

/// A walk through the requests of a file in time.
pub(super) struct Overlaps<'a> {
    requests: &'a [Ended],
    events: std::vec::IntoIter<(What, u32)>,
    endpoints: BTreeMap<u32, Here>,
    /// Of each request, where it stands in `all` of its endpoint.
    places: Vec<u32>,
    /// Of each that decodes, who did when its first token came.
    found: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Overlaps<'a> {
    pub(super) fn new(requests: &'a [Ended]) -> Self {
        let numbers = || (0_u32..).zip(requests);
        let mut events = Vec::with_capacity(2 * requests.len());
        let mut endpoints: BTreeMap<u32, Here> = BTreeMap::new();
        for (number, request) in numbers() {
            if was_served(request) {
                events.push((request.first_ms, What::Begins, number));
                endpoints.entry(request.endpoint).or_default().all.push(number);
            }
            events.push((request.last_ms, What::Ends, number));
        }
        events.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut places = vec![0; requests.len()];
        for here in endpoints.values_mut() {
            // Stable, so that equal ones are in the order in which they begin.
            let first_ms = |number: u32| requests[number as usize].first_ms;
            here.all.sort_by(|a, b| first_ms(*a).total_cmp(&first_ms(*b)));
            for (place, number) in (0..).zip(&here.all) {
                places[*number as usize] = place;
            }
        }
        let events: Vec<_> = events
            .into_iter()
            .map(|(_, what, number)| (what, number))
            .collect();
        Self {
            requests,
            events: events.into_iter(),
            endpoints,
            places,
            found: BTreeMap::new(),
        }
    }

    /// The next request that ends, and the load it decoded under. `prompt_ms`: what a prompt token adds to an iteration.
    pub(super) fn next(&mut self, prompt_ms: impl Fn() -> f64) -> Option<(usize, Option<Decode>)> {
        loop {
            let (what, number) = self.events.next()?;
            let request = &self.requests[number as usize];
            match what {
                What::Begins => {
                    let here = self.endpoints.entry(request.endpoint).or_default();
                    if says_something(request) {
                        self.found.insert(number, here.running.clone());
                    }
                    here.running.push(number);
                }
                What::Ends => {
                    let here = self.endpoints.entry(request.endpoint).or_default();
                    if let Some(at) = here.running.iter().position(|it| *it == number) {
                        here.running.swap_remove(at);
                    }
                    let found = self.found.remove(&number);
                    let decode = found.and_then(|it| self.decode(number, it, prompt_ms()));
                    return Some((number as usize, decode));
                }
            }
        }
    }

    fn decode(&self, number: u32, mut beside: Vec<u32>, prompt_ms: f64) -> Option<Decode> {
        let request = &self.requests[number as usize];
        let place = |number: u32| self.places[number as usize];
        let later = &self.endpoints.get(&request.endpoint)?.all[place(number) as usize..];
        let until_ms = request.last_ms + LAST_ITERATION_MS;
        let meanwhile = |it: &&u32| self.requests[**it as usize].first_ms <= until_ms;
        // Itself is the first of them.
        beside.extend(later.iter().take_while(meanwhile));
        beside.sort_unstable_by_key(|it| place(*it));
        let own = beside.iter().position(|it| *it == number)?;
        let mut spans: Vec<Span> = beside
            .into_iter()
            .map(|it| span(&self.requests[it as usize], request))
            .collect();
        overlap::decode_conditions(&mut spans, own, prompt_ms)
    }
}

/// One that gave nothing, and that nobody saw begin, wasn't.
fn was_served(request: &Ended) -> bool {
    request.seen || request.output > 0.0
}

/// It has a time between tokens.
fn says_something(request: &Ended) -> bool {
    request.seen && request.output >= 2.0 && request.last_ms > request.first_ms
}

/// What `it` was to `asked`.
fn span(it: &Ended, asked: &Ended) -> Span {
    let between = it.first_least_ms..it.first_most_ms;
    let uncertain = [asked.first_ms, asked.last_ms]
        .iter()
        .any(|end| between.contains(end));
    Span {
        first_ms: it.first_ms,
        last_ms: it.last_ms,
        input: it.input,
        resident: it.input,
        output: it.output.max(1.0),
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
            first_least_ms: first_ms,
            first_most_ms: first_ms,
            seen: true,
            last_ms,
            input,
            output,
            endpoint,
        }
    }

    /// In the order they end: number, C and M.
    fn walk(requests: &[Ended]) -> Vec<(usize, Option<(f64, f64)>)> {
        let mut overlaps = Overlaps::new(requests);
        let mut walked = Vec::new();
        while let Some((number, decode)) = overlaps.next(|| 0.0) {
            walked.push((number, decode.map(|it| (it.batch, it.resident))));
        }
        walked
    }

    #[test]
    fn who_runs_alone_has_a_load_of_one() {
        // 10 further tokens after the first; the mean of 101 .. 111 resident ones, about.
        let walked = walk(&[request(0, 0.0, 100.0, 100.0, 11.0)]);
        let (batch, resident) = walked[0].1.expect("a load");
        assert_eq!(batch, 1.0);
        assert!((resident - 105.5).abs() < 1.0, "{resident}");
    }

    #[test]
    fn all_of_the_same_endpoint_count_whenever_they_end() {
        let requests = [
            request(0, 0.0, 1_000.0, 100.0, 101.0),
            // Half of its time, from before it, into it; and one that ends long after it.
            request(0, -400.0, 500.0, 100.0, 91.0),
            request(0, -100.0, 9_000.0, 100.0, 911.0),
            request(1, 0.0, 1_000.0, 100.0, 101.0),
            // A prompt of 500 in its time, for a single token.
            request(0, 250.0, 250.0, 500.0, 1.0),
        ];
        let walked = walk(&requests);
        let order: Vec<usize> = walked.iter().map(|it| it.0).collect();
        assert_eq!(order, [4, 1, 0, 3, 2]);
        assert_eq!(walked[0].1, None, "one token has no time between tokens");
        let batch = |at: usize| walked[at].1.expect("a load").0;
        assert!((batch(2) - (1.0 + 0.5 + 1.0 + 5.0)).abs() < 0.02, "{}", batch(2));
        assert_eq!(batch(3), 1.0, "alone at its endpoint");
    }

    #[test]
    fn what_was_never_served_is_no_load() {
        let mut refused = request(0, 0.0, 1_000.0, 5_000.0, 0.0);
        refused.seen = false;
        let walked = walk(&[refused, request(0, 0.0, 1_000.0, 100.0, 101.0)]);
        assert_eq!(walked[0], (0, None));
        assert_eq!(walked[1].1.expect("a load").0, 1.0);
    }
}
