//! The search for an endpoint's bound by measurement: how many sequences its server computes at a time before it queues.
//!
//! No model is needed for that, so a server whose times can't be explained costs time, never throughput. The bound rises from
//! *level* to level. A level is full once as many sequences are in flight as the bound allows. What was granted until then is the
//! level's *generation*. When nine tenths of the generation have begun to answer, and more sequences answer at a time than at the level before, the
//! server has room, and the bound may rise again: by a half at first, and after a failure by an eighth. A generation of which a part
//! doesn't begin, while those that have begun go on, waits inside the server: the most sequences that answered at a time are what the
//! server computes at a time. Where too few answers are streamed to see their beginnings, a level is judged by its throughput,
//! once its generation has ended.
//!
//! A bound that was found is tested again, after 2 s at first and a minute at last, because a long prompt can look like a full
//! server, and servers change.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::policy::{ExtraPlaces, StockUnit};

use crate::window_stats::count;

/// An endpoint never takes more sequences than this by measurement alone.
const BOUND_MAX: u64 = 1 << 16;
/// The greatest part of the growth that may be missing in what answers at a time: a few requests are always about to begin.
const GROWTH_MISSING: f64 = 0.5;
/// If less than this part of what is in flight answers, answers are too short to show a queue by their beginnings.
const ANSWERING_MIN: f64 = 0.5;
/// The part of the growth by which the throughput rises at least if a higher bound is worth it,
const THROUGHPUT_GROWTH: f64 = 0.1;
/// and the least by which it rises.
const THROUGHPUT_NOISE: f64 = 0.03;
/// Fewer requests show no throughput,
const SHOWN_MIN: u64 = 16;
/// and not that an eighth more is worth it.
const SHOWN_MIN_TESTED: u64 = 64;
/// No generation is judged sooner.
const STALL_MIN: Duration = Duration::from_millis(300);
/// A generation of which nothing begins for so many times the pace of beginnings is waiting.
const STALL_TIMES: u32 = 3;
/// Or for so many times the mean time to the first token, at a level with room.
const STALL_TIMES_MEAN: f64 = 2.0;
/// Where a server's metrics are read, a stall waits for the next page: so many times the time between the last two,
const PAGE_LATE: u32 = 2;
/// but no longer.
const PAGE_WAIT_MAX: Duration = Duration::from_secs(3);
/// One request that doesn't begin has a long prompt. Fewer than this say nothing of a level that has stood for a while,
const WAITING_MIN: u64 = 2;
/// and less than one in so many of what is in flight never does.
const WAITING_PART: u64 = 10;
/// A server's metrics say nothing of requests that were granted so shortly before: servers update them once in an iteration. Where
/// beginnings show how long that takes, it is known better.
const PAGE_AGE: Duration = Duration::from_secs(1);
/// So many pages in a row that show a queue: one or two may show requests that the next iteration takes.
const PAGES_MIN: u32 = 3;
/// A bound that was found is tested after this time, and after twice as long at each further failure,
const RETRY_MIN: Duration = Duration::from_secs(2);
/// but at least so often.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The part of the bound that is left free where the server is known to compute no more, so that a request of a flow with nothing running
/// begins at once. It costs as much of the throughput.
const RESERVED: f64 = 0.02;
/// A level is renewed after this time, because the server may have changed.
const LEVEL_MAX: Duration = Duration::from_secs(10);

/// Targets that measured times must meet, in milliseconds; infinite without one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ceilings {
    pub(crate) first_token_ms: f64,
    pub(crate) itl_ms: f64,
}

/// How the last search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing yet: the bound has never been too high.
    Nothing,
    /// The server computes so many sequences at a time, and queues more.
    Full,
    /// More sequences at a time would give no more tokens.
    NoGain,
    /// More sequences at a time would miss a target.
    Target,
}

/// How a request was served, for levels that are judged by their ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    /// Output tokens, or 1 if they weren't counted.
    pub(crate) tokens: f64,
    /// From the grant to the end.
    pub(crate) duration: Duration,
    pub(crate) first_token_ms: Option<f64>,
    pub(crate) itl_ms: Option<f64>,
}

/// A sum and its count.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1.0;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// How many times the limit this is; 0 without values.
    fn times(&self, limit: f64) -> f64 {
        self.get().map_or(0.0, |mean| mean / limit)
    }
}

/// One level of the search.
#[derive(Clone, Copy, Debug)]
struct Level {
    since: Instant,
    /// The last request that was granted before the level.
    first: u64,
    /// The last request of the generation; `None` until the endpoint is full.
    last: Option<u64>,
    /// Requests of the generation, those that haven't begun to answer, and those that haven't ended.
    generation: u64,
    unstarted: u64,
    unended: u64,
    /// Its requests that began to answer, and those that ended before.
    begun: u64,
    whole: u64,
    /// The most sequences that answered at a time, and when that was reached.
    most: u64,
    most_since: Instant,
    /// The fastest first token.
    fastest: Option<Duration>,
    /// When the last request began to answer, and the longest time that one waited since the one before.
    last_begun: Option<Instant>,
    gap: Option<Duration>,
    /// The times from grants to first tokens.
    first_tokens: Mean,
    /// Of requests that were granted at this level and have ended: their number, tokens and durations.
    shown: u64,
    tokens: f64,
    seconds: f64,
    first_token_ms: Mean,
    itl_ms: Mean,
    /// Pages that showed requests waiting inside the server, one after the other, and how many requests it ran.
    queued_pages: u32,
    ran: u64,
    /// The fewest that waited in these pages.
    queue: u64,
    /// When the level was filled, and the last page on which nothing waited although it had been for a while.
    filled_at: Option<Instant>,
    clear_at: Option<Instant>,
}

impl Level {
    fn new(now: Instant, present: &Present) -> Self {
        Self {
            since: now,
            first: present.last,
            last: None,
            generation: 0,
            unstarted: 0,
            unended: 0,
            begun: 0,
            whole: 0,
            most: present.answering,
            most_since: now,
            fastest: None,
            last_begun: None,
            gap: None,
            first_tokens: Mean::default(),
            shown: 0,
            tokens: 0.0,
            seconds: 0.0,
            first_token_ms: Mean::default(),
            itl_ms: Mean::default(),
            queued_pages: 0,
            ran: 0,
            queue: u64::MAX,
            filled_at: None,
            clear_at: None,
        }
    }

    /// The beginnings of answers can be seen.
    const fn is_streamed(&self) -> bool {
        self.begun >= self.whole
    }

    /// The time after which the next request begins to answer, if it isn't queued: the longest time between two beginnings, or
    /// the fastest first token. `None`: nothing has begun.
    fn pace(&self) -> Option<Duration> {
        self.gap.max(self.fastest)
    }

    /// Tokens per second with `bound` sequences at a time.
    fn throughput(&self, bound: u64) -> Option<f64> {
        (self.seconds > 0.0 && self.tokens > 0.0).then(|| count(bound) * self.tokens / self.seconds)
    }
}

/// What a level has shown, for the next one.
#[derive(Clone, Copy, Debug)]
struct Shape {
    bound: u64,
    most: u64,
    throughput: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// It isn't known yet.
    Open,
    Room,
    /// So many sequences answered at a time.
    Full(u64),
    NoGain,
    /// A target was missed so many times.
    Missed(f64),
}

/// The requests in flight at an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Present {
    /// The number of the last granted request.
    pub(crate) last: u64,
    pub(crate) requests: u64,
    pub(crate) sequences: u64,
    /// Requests that haven't begun to answer.
    pub(crate) unstarted: u64,
    /// Sequences that answer.
    pub(crate) answering: u64,
    /// Sequences of the last granted request.
    pub(crate) width: u64,
}

#[derive(Debug)]
pub(crate) struct BoundSearch {
    bound: u64,
    bound_max: u64,
    /// The engine's places above the bound.
    extra_places: ExtraPlaces,
    /// The part of the bound that is left free for these places.
    reserved: u64,
    found: Found,
    level: Level,
    /// [`Level::most`] of the level before, if it had the same bound: a level that begins with the prompts of a generation shows too little.
    most_before: u64,
    /// The highest bound at which the server had room, since it was last found to be too high.
    proven: u64,
    /// The last level with room, below this one.
    below: Option<Shape>,
    /// The part of the bound that answered at a time at the last level with room.
    answering_part: Option<f64>,
    /// Its [`Level::pace`], and its mean time to the first token in seconds.
    pace: Option<Duration>,
    first_token: Option<f64>,
    /// When the last page of metrics was read, and the time since the one before.
    paged_at: Option<(Instant, Duration)>,
    retry_at: Option<Instant>,
    backoff: Duration,
    /// The bound was found lower than a step back, by slow beginnings alone. A server that has just started is as slow, so tests rise as fast
    /// as before.
    is_doubtful: bool,
}

impl BoundSearch {
    pub(crate) fn new(initial: u64, bound_max: u64, extra_places: ExtraPlaces) -> Self {
        let mut search = Self {
            bound: initial.clamp(1, bound_max.clamp(1, BOUND_MAX)),
            bound_max: bound_max.clamp(1, BOUND_MAX),
            extra_places,
            reserved: 0,
            found: Found::Nothing,
            level: Level::new(Instant::ZERO, &Present::default()),
            most_before: 0,
            proven: 0,
            below: None,
            answering_part: None,
            pace: None,
            first_token: None,
            paged_at: None,
            retry_at: None,
            backoff: RETRY_MIN,
            is_doubtful: false,
        };
        search.update_reserved();
        search
    }

    pub(crate) const fn extra_places(&self) -> ExtraPlaces {
        self.extra_places
    }

    pub(crate) fn set_extra_places(&mut self, places: ExtraPlaces) {
        self.extra_places = places;
        self.update_reserved();
    }

    /// After any change of the bound, and of what is known of it.
    fn update_reserved(&mut self) {
        // While more is tried, nothing is left free.
        let is_known = self.capacity().is_some() && self.retry_at.is_some();
        let places = self.extra_places.above(self.bound, StockUnit::Sequences);
        self.reserved = match is_known || self.bound == self.bound_max {
            true => places.min(part(RESERVED, self.bound)),
            false => 0,
        };
    }

    /// The most sequences within the engine's bound.
    pub(crate) const fn within(&self) -> u64 {
        self.bound - self.reserved
    }

    /// The most sequences that the server computes at a time, as far as that is known: more would wait inside it.
    pub(crate) fn room(&self) -> Option<u64> {
        let configured = Some(self.bound_max).filter(|most| *most < BOUND_MAX);
        self.capacity().or(configured)
    }

    /// The most sequences at a time, those above the engine's bound included where the server is known to compute no more.
    pub(crate) const fn bound(&self) -> u64 {
        self.bound
    }

    /// It is as it was created, with this bound.
    pub(crate) fn is_untouched(&self, initial: u64) -> bool {
        self.found == Found::Nothing && self.proven == 0 && self.bound == initial.clamp(1, self.bound_max)
    }

    pub(crate) const fn found(&self) -> Found {
        self.found
    }

    /// The most sequences that the server computes at a time, if more were tried; `None`: not known.
    pub(crate) const fn capacity(&self) -> Option<u64> {
        match self.found {
            Found::Full | Found::NoGain => Some(self.bound),
            Found::Nothing | Found::Target => None,
        }
    }

    /// Starts from a bound that another endpoint of the same kind has found, or that so many sequences in flight prove.
    pub(crate) fn start_from(&mut self, now: Instant, bound: u64, present: &Present) {
        if bound > self.bound {
            self.bound = bound.min(self.bound_max);
            self.update_reserved();
            self.level = Level::new(now, present);
        }
    }

    /// From now on a model limits the endpoint, and measurement only to `limit`; `None`: no longer. It ran about `usual` sequences at a time.
    pub(crate) fn set_limited(&mut self, now: Instant, limit: Option<u64>, usual: u64, present: &Present) {
        if self.found == Found::Full || self.found == Found::NoGain {
            return;
        }
        self.bound = limit.unwrap_or(usual).clamp(1, self.bound_max);
        (self.found, self.below, self.retry_at) = (Found::Nothing, None, None);
        self.proven = 0;
        self.update_reserved();
        self.level = Level::new(now, present);
        self.fill(now, present);
    }

    pub(crate) fn set_bound_max(&mut self, bound_max: u64, present: &Present) {
        self.bound_max = bound_max.clamp(1, BOUND_MAX);
        if self.bound > self.bound_max {
            self.bound = self.bound_max;
            self.proven = self.proven.min(self.bound);
            self.level = Level::new(self.level.since, present);
        }
        self.update_reserved();
    }

    /// A request was granted.
    pub(crate) fn granted(&mut self, now: Instant, present: &Present) {
        self.fill(now, present);
    }

    /// Whether no other request like the last one fits.
    pub(crate) fn is_full(&self, present: &Present) -> bool {
        present.sequences.saturating_add(present.width.max(1)) > self.within()
    }

    pub(crate) fn fill(&mut self, now: Instant, present: &Present) {
        if self.level.last.is_none() && self.is_full(present) {
            self.level.last = Some(present.last);
            self.level.filled_at = Some(now);
            self.level.generation = present.requests;
            self.level.unstarted = present.unstarted;
            self.level.unended = present.requests;
        }
    }

    /// A request began to answer, so long after its grant.
    pub(crate) fn started(&mut self, now: Instant, number: u64, after: Duration, present: &Present) {
        let level = &mut self.level;
        let since_last = level.last_begun.map_or(after, |last| now.since(last).min(after));
        level.gap = level.gap.max(Some(since_last));
        level.last_begun = Some(now);
        level.first_tokens.add(Some(after.as_secs_f64()));
        level.fastest = Some(level.fastest.map_or(after, |fastest| fastest.min(after)));
        if level.last.is_some_and(|last| number <= last) {
            level.unstarted = level.unstarted.saturating_sub(1);
            level.begun += 1;
        }
        self.answers(now, present);
    }

    /// So many sequences answer now.
    pub(crate) fn answers(&mut self, now: Instant, present: &Present) {
        if present.answering > self.level.most {
            self.level.most = present.answering;
            self.level.most_since = now;
        }
    }

    /// The most sequences that answered at a time at this bound.
    fn most(&self) -> u64 {
        self.level.most.max(self.most_before).min(self.bound)
    }

    /// The server has room at this level.
    fn note_room(&mut self) {
        self.pace = self.level.pace().or(self.pace);
        self.first_token = self.level.first_tokens.get().or(self.first_token);
        if self.level.begun > 0 || self.level.clear_at.is_none() {
            self.answering_part = Some(count(self.most()) / count(self.within()));
        }
        self.proven = self.proven.max(self.bound);
    }

    /// A request has ended. `started`: it had begun to answer before. `shown`: `None` if it wasn't served to its end.
    pub(crate) fn ended(&mut self, number: u64, started: bool, shown: Option<&Shown>) {
        let level = &mut self.level;
        let Some(last) = level.last else {
            return;
        };
        if number <= last {
            level.unended = level.unended.saturating_sub(1);
            if !started {
                level.unstarted = level.unstarted.saturating_sub(1);
                level.whole += 1;
            }
        }
        if let Some(shown) = shown.filter(|_| number > level.first) {
            level.shown += 1;
            level.tokens += shown.tokens;
            level.seconds += shown.duration.as_secs_f64();
            level.first_token_ms.add(shown.first_token_ms);
            level.itl_ms.add(shown.itl_ms);
        }
    }

    /// The server's metrics: it runs and queues so many requests, those of other clients included.
    pub(crate) fn paged(&mut self, now: Instant, running: u64, waiting: u64) {
        let since_last = self.paged_at.map_or(PAGE_AGE, |(last, _)| now.since(last));
        self.paged_at = Some((now, since_last));
        let age = self.patience().unwrap_or(PAGE_AGE);
        if waiting == 0 && self.level.filled_at.is_some_and(|filled_at| filled_at.after(age) <= now) {
            self.level.clear_at = Some(now);
        }
        let growth = self.growth();
        let level = &mut self.level;
        let grows = running > level.ran;
        level.ran = level.ran.max(running);
        let is_queue = is_queue(running + waiting, waiting, growth);
        if !is_queue || grows {
            (level.queued_pages, level.queue) = (0, u64::MAX);
            return;
        }
        level.queued_pages += 1;
        level.queue = level.queue.min(waiting);
    }

    /// The server hasn't had room at this bound yet.
    const fn is_new(&self) -> bool {
        self.growth() > 0
    }

    /// By how much the bound is above the highest at which the server had room.
    const fn growth(&self) -> u64 {
        self.bound.saturating_sub(self.proven)
    }

    /// A queue inside the server says something of this bound: it is filled, or it is higher than any that the server had room for. At a
    /// light load, a queue is one of prompts.
    const fn may_fall(&self) -> bool {
        self.level.last.is_some() || self.proven > 0 && self.is_new()
    }

    /// The time after which a generation that doesn't begin to answer is known to wait; `None` while nothing is known of this server.
    fn patience(&self) -> Option<Duration> {
        let pace = self.level.pace().max(self.pace)?;
        Some(STALL_MIN.max(pace * STALL_TIMES))
    }

    /// When the oldest streamed request that hasn't begun to answer, granted at `oldest`, shows that the server queues.
    fn stalls_at(&self, oldest: Option<Instant>, present: &Present) -> Option<Instant> {
        let waiting = present.sequences.saturating_sub(present.answering);
        if !self.may_fall() || !is_queue(present.sequences, waiting, self.growth()) {
            return None;
        }
        let since = oldest?.max(self.level.most_since).max(self.level.since);
        // A page without a queue explains what doesn't begin: its prompt is long.
        let since = self.level.clear_at.map_or(since, |clear_at| since.max(clear_at));
        let mean = Duration::from_secs_f64(self.first_token.unwrap_or(0.0) * STALL_TIMES_MEAN);
        let stalls_at = since.after(self.patience()?.max(mean.min(LEVEL_MAX)));
        // A machine that is busy for a moment delays beginnings too, so the next page has a word, if pages come and none has shown a queue.
        let pages = self.paged_at.filter(|_| self.level.queued_pages == 0);
        let wait = pages.map_or(Duration::ZERO, |(last, interval)| {
            let wait = (interval * PAGE_LATE).min(PAGE_WAIT_MAX);
            if last.after(wait) < stalls_at { Duration::ZERO } else { wait }
        });
        Some(stalls_at.after(wait))
    }

    fn verdict(&self, ceilings: Option<&Ceilings>) -> Verdict {
        let level = &self.level;
        let few = level.generation / WAITING_PART;
        // The few that the bound has grown by are what is to be seen.
        let few = if self.is_new() { few.min(self.growth() / 2) } else { few };
        let has_begun = level.unstarted <= few || level.clear_at.is_some();
        if level.last.is_none() || !has_begun {
            return Verdict::Open;
        }
        if let Some(ceilings) = ceilings {
            if level.unended > 0 && level.shown < SHOWN_MIN {
                return Verdict::Open;
            }
            let first = level.first_token_ms.times(ceilings.first_token_ms);
            let missed = first.max(level.itl_ms.times(ceilings.itl_ms));
            if missed > 1.0 {
                return Verdict::Missed(missed);
            }
            if level.unended > 0 {
                return Verdict::Open;
            }
        }
        if level.clear_at.is_some() {
            return Verdict::Room;
        }
        let growth = self.below.map_or(1.0, |below| count(self.bound) / count(below.bound)).max(1.0);
        let part = self.answering_part.unwrap_or_else(|| count(level.most) / count(self.bound));
        if level.is_streamed() && part >= ANSWERING_MIN {
            let expected = self
                .below
                .map_or(0.0, |below| count(below.most) * (1.0 + (growth - 1.0) * (1.0 - GROWTH_MISSING)));
            return if count(level.most) >= expected { Verdict::Room } else { Verdict::Full(level.most) };
        }
        let shown_min = if self.found == Found::Nothing { SHOWN_MIN } else { SHOWN_MIN_TESTED };
        if level.unended > 0 || level.shown < shown_min {
            return Verdict::Open;
        }
        let before = self.below.filter(|below| below.bound < self.bound).and_then(|below| below.throughput);
        let needed = ((growth - 1.0) * THROUGHPUT_GROWTH).max(THROUGHPUT_NOISE);
        match (before, level.throughput(self.within())) {
            (Some(before), Some(now)) if now < before * (1.0 + needed) => Verdict::NoGain,
            _ => Verdict::Room,
        }
    }

    /// The bound could rise now, if requests wait.
    pub(crate) fn is_ripe(&self, now: Instant, ceilings: Option<&Ceilings>) -> bool {
        self.bound < self.bound_max
            && self.retry_at.is_none_or(|due| due <= now)
            && self.verdict(ceilings) == Verdict::Room
    }

    /// A bound that was found is to be tested, so nothing else may keep the endpoint below it.
    pub(crate) fn wants_test(&self, now: Instant) -> bool {
        self.capacity().is_some() && self.retry_at.is_some_and(|due| due <= now)
    }

    /// When [`Self::advance`] is due, unless something happens before.
    pub(crate) fn due(
        &self,
        now: Instant,
        oldest: Option<Instant>,
        present: &Present,
        ceilings: Option<&Ceilings>,
    ) -> Option<Instant> {
        if self.drains(present) {
            return None;
        }
        let stalls_at = self.stalls_at(oldest, present);
        match self.verdict(ceilings) {
            Verdict::Open | Verdict::Room if self.is_queued_by_pages() => Some(now),
            Verdict::Full(_) | Verdict::NoGain | Verdict::Missed(_) => Some(now),
            Verdict::Room => {
                let retry_at = self.retry_at.filter(|due| *due > now && self.bound < self.bound_max);
                let renewed_at = self.is_full(present).then(|| self.level.since.after(LEVEL_MAX));
                earlier(earlier(stalls_at, retry_at), renewed_at)
            }
            Verdict::Open => stalls_at,
        }
    }

    /// More is in flight than the bound allows, since the bound fell, so a queue doesn't show that the bound is too high. A single request may be larger than it.
    const fn drains(&self, present: &Present) -> bool {
        present.sequences > self.bound && present.requests > 1
    }

    const fn is_queued_by_pages(&self) -> bool {
        self.level.queued_pages >= PAGES_MIN && self.may_fall()
    }

    /// Judges the level. `is_wanted`: requests wait for room at endpoints. Returns whether the bound has changed.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        oldest: Option<Instant>,
        present: &Present,
        (ceilings, is_wanted): (Option<&Ceilings>, bool),
    ) -> bool {
        if self.drains(present) {
            return false;
        }
        let before = self.bound;
        let has_stalled = self.stalls_at(oldest, present).is_some_and(|due| due <= now);
        match self.verdict(ceilings) {
            Verdict::Open | Verdict::Room if self.is_queued_by_pages() => {
                let computed = present.sequences.saturating_sub(self.level.queue).max(self.level.ran);
                self.fall(now, computed, Found::Full, present);
            }
            Verdict::Open | Verdict::Room if has_stalled => {
                self.fall(now, self.computed_at_a_time(self.level.most), Found::Full, present);
            }
            Verdict::Full(most) => {
                self.fall(now, self.computed_at_a_time(most), Found::Full, present);
            }
            Verdict::NoGain => {
                let below = self.below.map_or(self.bound, |below| below.bound);
                self.fall(now, below, Found::NoGain, present);
            }
            Verdict::Missed(times) => {
                let kept = (count(self.bound) / times).floor();
                self.fall(now, whole(kept).min(self.bound.saturating_sub(1)), Found::Target, present);
            }
            Verdict::Room if is_wanted && self.is_ripe(now, ceilings) => self.rise(now, present),
            Verdict::Room if self.is_full(present) && now.since(self.level.since) >= LEVEL_MAX => {
                self.note_room();
                self.most_before = self.level.most;
                self.level = Level::new(now, present);
                self.fill(now, present);
            }
            Verdict::Room | Verdict::Open => {}
        }
        self.bound != before
    }

    fn throughput(&self) -> Option<f64> {
        self.level.throughput(self.within())
    }

    /// The sequences that a server computes at a time of which so many answered at a time: a few are always about to begin.
    fn computed_at_a_time(&self, most: u64) -> u64 {
        let part = self.answering_part.unwrap_or(1.0).max(ANSWERING_MIN);
        whole((count(most) / part).ceil()).max(most)
    }

    fn rise(&mut self, now: Instant, present: &Present) {
        self.below = Some(Shape { bound: self.bound, most: self.most(), throughput: self.throughput() });
        self.note_room();
        if self.retry_at.take().is_none() && self.found != Found::Nothing {
            // The last test has succeeded: the server computes more than was found.
            self.backoff = RETRY_MIN;
        }
        let is_judged_by_ends =
            self.level.clear_at.is_none() && self.answering_part.is_some_and(|part| part < ANSWERING_MIN);
        let more = match self.found {
            // Levels that are judged by their ends take long.
            Found::Nothing if is_judged_by_ends => self.bound,
            Found::Nothing => self.bound / 2,
            Found::Full if self.is_doubtful => self.bound / 2,
            Found::Full | Found::NoGain | Found::Target => self.bound / 8,
        }
        .max(1);
        self.bound = self.bound.saturating_add(more).min(self.bound_max);
        self.update_reserved();
        self.most_before = 0;
        self.level = Level::new(now, present);
        self.fill(now, present);
    }

    /// The bound was too high: it becomes `bound`, but no less than half of what is in flight.
    fn fall(&mut self, now: Instant, bound: u64, found: Found, present: &Present) {
        let tested = self.below.filter(|below| self.found != Found::Nothing && below.bound < self.bound);
        let least = tested.map_or(0, |below| below.bound);
        let least = if self.level.last.is_none() { least.max(self.proven) } else { least };
        let bound = bound.max(least);
        let (first, before) = (self.found == Found::Nothing, self.bound);
        self.bound = bound.clamp((present.sequences / 2).clamp(1, self.bound), self.bound);
        // A rise by a half is undone by a fall by a third.
        self.is_doubtful =
            first && !self.is_queued_by_pages() && self.bound.saturating_mul(3) < before.saturating_mul(2);
        self.found = found;
        self.proven = self.proven.min(self.bound);
        self.most_before = 0;
        self.retry_at = Some(now.after(self.backoff));
        self.backoff = (self.backoff * 2).min(RETRY_MAX);
        self.update_reserved();
        // A level with nothing below it isn't too high.
        self.below = None;
        self.level = Level::new(now, present);
        self.fill(now, present);
    }
}

/// Whether so many waiting of so many that are in flight at a server are a queue. `growth`: by how much the bound has risen; then most of what it
/// has risen by suffices.
const fn is_queue(in_flight: u64, waiting: u64, growth: u64) -> bool {
    let is_most = growth > 0 && waiting > growth / 2;
    is_most || waiting >= WAITING_MIN && waiting.saturating_mul(WAITING_PART) >= in_flight
}

/// This part of a bound, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not above the bound")]
fn part(part: f64, bound: u64) -> u64 {
    (part * count(bound)) as u64
}

pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at least 1, and not above a bound"
)]
fn whole(number: f64) -> u64 {
    number.max(1.0) as u64
}

#[cfg(test)]
mod tests;
