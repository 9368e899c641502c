//! The rules of the search, one by one. Simulated floods are among the tests of the closed loop.

use super::*;

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An endpoint whose requests begin to answer and end when a test says so.
struct Bench {
    search: BoundSearch,
    now: Instant,
    present: Present,
    /// Requests that haven't begun: their numbers and grants.
    unstarted: Vec<(u64, Instant)>,
    /// Requests that answer.
    answering: Vec<(u64, Instant)>,
    ceilings: Option<Ceilings>,
}

impl Bench {
    fn new(initial: u64) -> Self {
        Self {
            search: BoundSearch::new(initial, 256, ExtraPlaces::NONE),
            now: Instant::ZERO.after(Duration::from_secs(100)),
            present: Present::default(),
            unstarted: Vec::new(),
            answering: Vec::new(),
            ceilings: None,
        }
    }

    /// A bench whose bound is `bound`, after levels with room.
    fn with_room_up_to(bound: u64) -> Self {
        let mut bench = Self::new(8);
        loop {
            bench.fill();
            bench.begin(100, usize::MAX);
            if bench.search.bound() >= bound {
                return bench;
            }
            assert!(bench.judge(true), "{:?}", bench.search);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.after(millis(ms));
    }

    /// Grants requests until the endpoint is full.
    fn fill(&mut self) {
        while !self.search.is_full(&self.present) {
            self.grant(1);
        }
    }

    /// Grants a request of so many sequences.
    fn grant(&mut self, width: u64) {
        self.present.width = width;
        self.present.last += 1;
        self.present.requests += 1;
        self.present.sequences += width;
        self.present.unstarted += 1;
        self.unstarted.push((self.present.last, self.now));
        self.search.granted(self.now, &self.present);
    }

    /// Lets the oldest `count` requests begin to answer, `ms` later.
    fn begin(&mut self, ms: u64, count: usize) {
        self.pass(ms);
        let count = count.min(self.unstarted.len());
        for (number, granted) in self.unstarted.drain(..count) {
            self.present.unstarted -= 1;
            self.present.answering += 1;
            self.search.started(self.now, number, self.now.since(granted), &self.present);
            self.answering.push((number, granted));
        }
    }

    /// Lets the oldest `count` requests end, whether or not they have begun.
    fn end(&mut self, count: usize, tokens: f64) {
        for _ in 0..count {
            let started = !self.answering.is_empty();
            let (number, granted) = if started { self.answering.remove(0) } else { self.unstarted.remove(0) };
            let counter = if started { &mut self.present.answering } else { &mut self.present.unstarted };
            *counter -= 1;
            self.present.requests -= 1;
            self.present.sequences -= 1;
            let duration = self.now.since(granted);
            let itl_ms = Some(duration.as_secs_f64() * 1_000.0 / tokens);
            let shown = Shown { tokens, duration, first_token_ms: None, itl_ms };
            self.search.ended(number, started, Some(&shown));
        }
    }

    fn judge(&mut self, is_wanted: bool) -> bool {
        let oldest = self.unstarted.first().map(|(_, granted)| *granted);
        self.search.advance(self.now, oldest, &self.present, (self.ceilings.as_ref(), is_wanted))
    }

    fn due(&self) -> Option<Instant> {
        let oldest = self.unstarted.first().map(|(_, granted)| *granted);
        self.search.due(self.now, oldest, &self.present, self.ceilings.as_ref())
    }

    /// Lets time pass until the search is due, and judges it.
    fn judge_when_due(&mut self, is_wanted: bool) -> bool {
        self.now = self.now.max(self.due().expect("something is due"));
        self.judge(is_wanted)
    }
}

#[test]
fn bound_rises_by_a_half_once_all_have_begun_and_requests_wait() {
    let mut bench = Bench::new(8);
    bench.fill();
    assert!(!bench.judge(true), "nothing has begun");
    bench.begin(100, 7);
    assert!(!bench.judge(true), "one hasn't begun");
    bench.begin(10, 1);
    assert!(!bench.judge(false), "nothing waits");
    assert!(bench.judge(true));
    assert_eq!((bench.search.bound(), bench.search.found()), (12, Found::Nothing));
    assert!(!bench.judge(true), "the new level isn't full");
    bench.fill();
    bench.begin(100, 4);
    assert!(bench.judge(true));
    assert_eq!(bench.search.bound(), 18);
}

#[test]
fn what_answers_at_a_time_is_the_bound_when_the_rest_does_not_begin() {
    let mut bench = Bench::with_room_up_to(18);
    assert!(bench.judge(true));
    bench.fill();
    bench.begin(100, 2);
    assert_eq!((bench.search.bound(), bench.present.answering), (27, 20));
    let due = bench.due().expect("a stall is due");
    assert_eq!(due.since(bench.now), millis(300), "three times the pace");
    bench.pass(299);
    assert!(!bench.judge(true));
    bench.pass(1);
    assert!(bench.judge(true));
    assert_eq!((bench.search.bound(), bench.search.capacity()), (20, Some(20)));
}

#[test]
fn bound_that_was_found_is_tested_by_an_eighth_less_and_less_often() {
    let mut bench = Bench::with_room_up_to(18);
    bench.judge(true);
    bench.fill();
    bench.begin(100, 0);
    assert!(bench.judge_when_due(true));
    assert_eq!(bench.search.bound(), 18);
    // The nine in the server's queue end.
    bench.end(9, 10.0);
    bench.begin(10, usize::MAX);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let since = bench.now;
        while bench.search.bound() == 18 {
            bench.judge_when_due(true);
        }
        assert_eq!(bench.search.bound(), 20);
        waits.push(bench.now.since(since).as_secs());
        bench.fill();
        while bench.search.bound() == 20 {
            bench.judge_when_due(true);
        }
        assert_eq!(bench.search.bound(), 18);
        bench.end(2, 10.0);
        bench.begin(10, usize::MAX);
    }
    assert_eq!(waits, [1, 3, 7, 15, 31, 59, 59, 59], "2 s, 4 s and so on since the failure");
}

#[test]
fn test_that_succeeds_is_followed_by_the_next() {
    let mut bench = Bench::with_room_up_to(18);
    bench.judge(true);
    bench.fill();
    bench.judge_when_due(true);
    bench.begin(10, usize::MAX);
    bench.end(9, 10.0);
    bench.fill();
    bench.begin(10, usize::MAX);
    bench.pass(2_000);
    for expected in [20, 22, 24, 27] {
        assert!(bench.judge(true), "{:?}", bench.search);
        assert_eq!(bench.search.bound(), expected);
        bench.fill();
        bench.begin(50, usize::MAX);
    }
}

#[test]
fn one_long_prompt_among_many_is_no_queue() {
    let mut bench = Bench::with_room_up_to(12);
    bench.end(1, 10.0);
    bench.fill();
    for _ in 0..40 {
        bench.pass(500);
        bench.judge(false);
        // Others end, and new ones begin.
        bench.end(1, 10.0);
        bench.fill();
        let long = bench.unstarted.remove(0);
        bench.begin(50, usize::MAX);
        bench.unstarted.insert(0, long);
    }
    assert_eq!((bench.search.bound(), bench.search.found()), (12, Found::Nothing));
}

#[test]
fn nothing_is_judged_while_more_is_in_flight_than_the_bound_allows() {
    let mut bench = Bench::with_room_up_to(18);
    bench.judge(true);
    bench.fill();
    bench.judge_when_due(true);
    assert_eq!((bench.search.bound(), bench.present.sequences), (18, 27));
    bench.pass(60_000);
    assert!(!bench.judge(true));
    assert_eq!((bench.due(), bench.search.bound()), (None, 18));
}

#[test]
fn three_pages_with_a_queue_that_does_not_move_show_what_the_server_runs() {
    let mut bench = Bench::with_room_up_to(18);
    bench.judge(true);
    bench.fill();
    bench.search.paged(bench.now, 12, 9);
    assert!(!bench.judge(true), "a page may show arrivals");
    bench.search.paged(bench.now, 16, 6);
    bench.search.paged(bench.now, 18, 4);
    assert!(!bench.judge(true), "the server runs more and more of them");
    bench.search.paged(bench.now, 18, 1);
    assert!(!bench.judge(true), "so few are no queue");
    bench.search.paged(bench.now, 18, 9);
    bench.search.paged(bench.now, 17, 10);
    assert!(!bench.judge(true), "two may, too");
    bench.search.paged(bench.now, 16, 11);
    assert!(bench.judge(true));
    assert_eq!((bench.search.bound(), bench.search.found()), (18, Found::Full));
}

#[test]
fn without_beginnings_levels_are_judged_by_their_throughput_when_they_have_ended() {
    // So many requests at a time take 10 s up to 32, and as much longer as they are more.
    let seconds = |bound: u64| 10 * bound.div_ceil(32).max(1);
    let mut bench = Bench::new(8);
    let mut bounds = vec![8];
    for _ in 0..20 {
        bench.fill();
        let bound = usize::try_from(bench.search.bound()).expect("small");
        bench.pass(1_000 * seconds(bench.search.bound()));
        bench.end(bound, 100.0);
        bench.fill();
        bench.judge(true);
        bounds.push(bench.search.bound());
    }
    bounds.dedup();
    assert_eq!(bounds[..5], [8, 16, 32, 64, 32], "{bounds:?}");
    assert!(bounds[5..].iter().all(|bound| (32..=36).contains(bound)), "{bounds:?}");
    assert_eq!(bench.search.found(), Found::NoGain);
}

#[test]
fn measured_times_above_a_ceiling_lower_the_bound() {
    let mut bench = Bench::new(8);
    bench.ceilings = Some(Ceilings { first_token_ms: f64::INFINITY, itl_ms: 50.0 });
    bench.fill();
    bench.begin(100, usize::MAX);
    assert!(!bench.judge(true), "no answer has ended, so no time between tokens is known");
    // 100 tokens in 8 s are 80 ms each.
    bench.pass(7_900);
    bench.end(8, 100.0);
    bench.fill();
    assert!(bench.judge(true));
    assert_eq!((bench.search.bound(), bench.search.found()), (5, Found::Target));
    assert_eq!(bench.search.capacity(), None, "the server would compute more");
}

#[test]
fn what_a_model_limits_has_the_highest_bound_and_returns_to_what_ran() {
    let mut bench = Bench::with_room_up_to(18);
    bench.search.set_limited(bench.now, Some(200), 18, &bench.present);
    assert_eq!(bench.search.bound(), 200);
    bench.search.set_limited(bench.now, None, 40, &bench.present);
    assert_eq!((bench.search.bound(), bench.search.found()), (40, Found::Nothing));
    let mut full = Bench::with_room_up_to(18);
    full.judge(true);
    full.fill();
    full.judge_when_due(true);
    full.search.set_limited(full.now, Some(200), 18, &full.present);
    assert_eq!(full.search.bound(), 18, "the server queues more, whatever the model says");
}

#[test]
fn bound_never_falls_below_half_of_what_is_in_flight_nor_below_one() {
    let mut bench = Bench::new(8);
    bench.fill();
    bench.begin(100, 1);
    assert!(bench.judge_when_due(true));
    assert_eq!(bench.search.bound(), 4);
    let mut single = Bench::new(0);
    assert_eq!(single.search.bound(), 1);
    single.fill();
    single.begin(10, 1);
    single.pass(5_000);
    single.judge(false);
    assert_eq!(single.search.bound(), 1);
}

#[test]
fn endpoint_is_full_when_the_next_request_like_the_last_does_not_fit() {
    let mut bench = Bench::new(8);
    bench.grant(3);
    bench.grant(3);
    bench.pass(100);
    for (number, granted) in bench.unstarted.drain(..).collect::<Vec<_>>() {
        bench.present.unstarted -= 1;
        bench.present.answering += 3;
        bench.search.started(bench.now, number, bench.now.since(granted), &bench.present);
    }
    assert!(bench.judge(true), "six of eight places are taken, and three are wanted");
    let mut list = Bench::new(8);
    list.grant(32);
    list.pass(100);
    list.present.unstarted = 0;
    list.present.answering = 32;
    list.search.started(list.now, 1, millis(100), &list.present);
    assert!(list.judge(true), "it runs alone, and the next one waits");
}

#[test]
fn prompts_that_wait_at_a_light_load_say_nothing_of_the_bound() {
    let mut fresh = Bench::new(8);
    fresh.grant(1);
    fresh.begin(80, 1);
    fresh.end(1, 10.0);
    fresh.grant(1);
    fresh.grant(1);
    fresh.pass(5_000);
    assert!(!fresh.judge(true) && fresh.due().is_none(), "{:?}", fresh.search);
    fresh.search.paged(fresh.now, 1, 1);
    fresh.search.paged(fresh.now, 1, 1);
    fresh.search.paged(fresh.now, 1, 1);
    assert!(!fresh.judge(true));
    assert_eq!((fresh.search.bound(), fresh.search.found()), (8, Found::Nothing));
}

#[test]
fn queue_below_a_new_bound_lowers_it_to_no_less_than_what_was_proven() {
    let mut bench = Bench::with_room_up_to(18);
    assert!(bench.judge(true));
    assert_eq!(bench.search.bound(), 27);
    // Only four more arrive, and none of them begins.
    for _ in 0..4 {
        bench.grant(1);
    }
    assert!(bench.judge_when_due(true));
    assert_eq!((bench.search.bound(), bench.search.found()), (18, Found::Full));
}

#[test]
fn configured_batch_limits_the_bound_from_the_start_and_when_it_changes() {
    assert_eq!(BoundSearch::new(8, 4, ExtraPlaces::NONE).bound(), 4);
    let mut bench = Bench::with_room_up_to(18);
    bench.search.set_bound_max(16, &bench.present);
    assert_eq!(bench.search.bound(), 16);
    bench.end(2, 10.0);
    bench.fill();
    bench.begin(10, usize::MAX);
    assert!(!bench.judge(true), "nothing above it is tried");
}

#[test]
fn page_without_a_queue_shows_room_where_no_beginning_is_seen() {
    let mut bench = Bench::new(8);
    bench.fill();
    bench.pass(900);
    bench.search.paged(bench.now, 8, 0);
    assert!(!bench.judge(true), "the page may be older than the requests");
    bench.pass(200);
    bench.search.paged(bench.now, 8, 0);
    assert!(bench.judge(true));
    assert_eq!(bench.search.bound(), 12);
}

/// Where a server is known to compute no more, a fiftieth stays free for flows with nothing running, and is no growth at the next test.
#[test]
fn a_part_of_what_the_server_computes_is_left_free_for_places_above_the_bound() {
    /// As many answer as the server computes at a time.
    fn begin(bench: &mut Bench) {
        bench.fill();
        bench.begin(100, usize::try_from(96 - bench.present.answering).unwrap());
    }
    let mut bench = Bench::with_room_up_to(90);
    bench.search.set_extra_places(ExtraPlaces::Count(1));
    assert_eq!(bench.search.within(), bench.search.bound(), "nothing is known yet");
    begin(&mut bench);
    while bench.search.found() == Found::Nothing {
        bench.judge_when_due(true);
        begin(&mut bench);
    }
    let bound = bench.search.bound();
    assert!((96..=100).contains(&bound), "{bound}");
    assert_eq!((bench.search.within(), bench.search.room()), (bound - 1, Some(bound)));
    for _ in 0..5 {
        // Those that answer end, and those that waited inside the server begin.
        bench.end(bench.answering.len(), 10.0);
        bench.begin(100, usize::MAX);
        bench.fill();
        assert_eq!(bench.present.sequences, bound - 1, "one place stays free");
        bench.begin(100, usize::MAX);
        bench.pass(61_000);
        assert!(bench.judge(true), "it is tested again: {:?}", bench.search);
        let tested = bench.search.bound();
        assert!(
            tested > bound && bench.search.within() == tested,
            "while more is tried, nothing is left free"
        );
        begin(&mut bench);
        bench.judge_when_due(true);
        assert_eq!(bench.search.bound(), bound, "it doesn't creep up");
    }
    // Of a few, nothing is left free.
    let search = BoundSearch::new(8, 8, ExtraPlaces::Count(4));
    assert_eq!((search.within(), search.room()), (8, Some(8)));
    let search = BoundSearch::new(200, 200, ExtraPlaces::Count(9));
    assert_eq!((search.within(), search.room()), (196, Some(200)), "its batch is configured");
}

/// One request more is less than a tenth of some bounds, so the few that are always about to begin would hide it.
#[test]
fn small_bounds_rise_by_one_when_that_one_has_begun_and_fall_when_it_waits() {
    for bound in 8..=12 {
        let mut bench = Bench::new(bound);
        bench.fill();
        bench.begin(100, usize::MAX);
        assert!(bench.judge(true));
        bench.fill();
        // So many answer at a time, and the rest waits inside the server.
        bench.begin(100, 0);
        bench.judge_when_due(true);
        assert_eq!((bench.search.bound(), bench.search.found()), (bound, Found::Full));
        bench.end(bench.answering.len(), 10.0);
        bench.begin(100, usize::MAX);
        bench.fill();
        bench.begin(100, usize::MAX);
        // The server computes more now.
        for more in 1..=3 {
            bench.pass(61_000);
            assert!(bench.judge(true), "{bound} {more}: {:?}", bench.search);
            assert_eq!(bench.search.bound(), bound + more);
            bench.fill();
            assert!(!bench.judge(true), "the last one hasn't begun");
            bench.begin(100, usize::MAX);
        }
        // And now no more.
        bench.pass(61_000);
        bench.judge(true);
        bench.fill();
        bench.begin(100, 0);
        assert_eq!(bench.search.bound(), bound + 4);
        bench.judge_when_due(true);
        assert_eq!(bench.search.bound(), bound + 3, "{bound}: the one more waits inside the server");
    }
}

#[test]
fn a_bound_that_slow_beginnings_have_halved_rises_as_fast_as_before() {
    let mut bench = Bench::new(8);
    // A server that has just started begins one of eight, and the others late.
    bench.fill();
    bench.begin(100, 1);
    assert!(bench.judge_when_due(true));
    assert_eq!((bench.search.bound(), bench.search.found()), (4, Found::Full));
    bench.begin(1_000, usize::MAX);
    bench.end(4, 10.0);
    bench.fill();
    bench.pass(2_000);
    for expected in [6, 9, 13, 19] {
        assert!(bench.judge_when_due(true), "{:?}", bench.search);
        assert_eq!(bench.search.bound(), expected);
        bench.fill();
        bench.begin(50, usize::MAX);
    }
}

#[test]
fn where_pages_come_a_stall_waits_for_the_next_one() {
    let stalled = |pages: &[u64]| {
        let mut bench = Bench::with_room_up_to(18);
        for queue in pages {
            bench.pass(1_000);
            bench.search.paged(bench.now, 18, *queue);
        }
        let paged_at = bench.now;
        assert!(bench.judge(true));
        bench.fill();
        bench.begin(100, 2);
        (bench, paged_at)
    };
    // A page comes each second, and two may be missed after the stall, 300 ms after the last beginning.
    let (bench, paged_at) = stalled(&[0, 0]);
    assert_eq!(bench.due(), Some(paged_at.after(millis(100 + 300 + 2_000))));
    // Pages that show neither a queue nor none put it off no further.
    let (mut bench, _) = stalled(&[0, 0]);
    for _ in 0..2 {
        bench.pass(1_000);
        bench.search.paged(bench.now, 27, 1);
        assert!(!bench.judge(true));
    }
    bench.pass(300);
    assert!(bench.judge(true));
    // The next one shows no queue: the server was slow, and has room.
    let (mut bench, _) = stalled(&[0, 0]);
    bench.pass(1_000);
    bench.search.paged(bench.now, 27, 0);
    assert!(bench.judge(true));
    assert_eq!(bench.search.bound(), 40);
    // Or it shows the queue, and the stall is believed at once.
    let (mut bench, _) = stalled(&[0, 0]);
    bench.pass(900);
    bench.search.paged(bench.now, 20, 7);
    bench.pass(1);
    bench.search.paged(bench.now, 20, 7);
    assert!(bench.judge(true));
    assert_eq!((bench.search.bound(), bench.search.capacity()), (20, Some(20)));
    // Pages that no longer come delay nothing.
    let (mut bench, _) = stalled(&[0, 0]);
    bench.pass(60_000);
    assert!(bench.judge(true));
}

#[test]
fn a_server_whose_first_tokens_take_long_is_given_twice_their_mean() {
    let mut bench = Bench::new(8);
    bench.fill();
    // One after the other, so that the longest time between two beginnings is short.
    for _ in 0..8 {
        bench.begin(100, 1);
    }
    assert!(bench.judge(true));
    bench.fill();
    bench.begin(100, 1);
    let due = bench.due().expect("a stall is due").since(bench.now);
    assert_eq!(due, millis(900), "the mean is 450 ms");
}
