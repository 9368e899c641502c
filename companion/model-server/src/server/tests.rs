//! Exact event times of small cases, the closed form of a constant batch, and invariants under random operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn at_ms(ms: f64) -> Instant {
    Instant::from_nanos((ms * 1e6).round() as u64)
}

fn server(hardware: Hardware) -> Server {
    Server::new(hardware, 1).expect("the hardware of a test is valid")
}

/// 10 ms per iteration, 1 ms per processed token, no cost for resident tokens.
fn plain() -> Hardware {
    Hardware { alpha_ms: 10.0, beta_ms: 1.0, gamma_ms: 0.0, ..Hardware::default() }
}

fn job(id: u64, input: u64, output: u64) -> Job {
    Job { id: JobId(id), input, cached: 0, output }
}

fn events(server: &mut Server) -> Vec<(f64, u64, JobProgress)> {
    std::iter::from_fn(|| server.poll_event())
        .map(|e| (e.time.as_nanos() as f64 / 1e6, e.id.0, e.progress))
        .collect()
}

/// Runs the server until it is idle.
fn drain(server: &mut Server) {
    while let Some(time) = server.poll_timeout() {
        server.handle_timeout(time);
    }
}

#[test]
fn cached_tokens_are_resident_and_not_computed() {
    let mut s = server(Hardware { gamma_ms: 0.5, ..plain() });
    let cached = |id, cached| Job { cached, ..job(id, 20, 1) };
    s.submit(at_ms(0.0), cached(1, 16)).unwrap();
    drain(&mut s);
    assert_eq!(events(&mut s)[0], (10.0 + 4.0 + 10.0, 1, JobProgress::First));
    assert_eq!(s.gauges(), Gauges::default());
    s.submit(at_ms(100.0), cached(2, u64::MAX)).unwrap();
    drain(&mut s);
    let (first, ..) = events(&mut s)[0];
    assert_eq!(first, 100.0 + 10.0 + 1.0 + 10.0, "one token is computed");
}

#[test]
fn lone_job_gets_its_first_token_after_its_prompt_and_then_one_per_iteration() {
    let mut s = server(plain());
    s.submit(at_ms(5.0), job(1, 20, 3)).unwrap();
    s.handle_timeout(at_ms(1_000.0));
    let expected = vec![
        (35.0, 1, JobProgress::First),
        (46.0, 1, JobProgress::Token),
        (57.0, 1, JobProgress::Token),
        (57.0, 1, JobProgress::Done),
    ];
    assert_eq!(events(&mut s), expected);
    assert_eq!((s.gauges(), s.poll_timeout()), (Gauges::default(), None));
    let totals = s.totals();
    assert_eq!((totals.done, totals.prompt_tokens, totals.output_tokens, totals.iterations), (1, 20, 3, 3));
}

#[test]
fn resident_tokens_add_gamma_to_an_iteration() {
    let mut s = server(Hardware { gamma_ms: 0.1, ..plain() });
    s.submit(Instant::ZERO, job(1, 20, 2)).unwrap();
    drain(&mut s);
    // 10 + 20 + 2 for the prompt, then 10 + 1 + 2.1 with 21 tokens resident.
    let expected =
        vec![(32.0, 1, JobProgress::First), (45.1, 1, JobProgress::Token), (45.1, 1, JobProgress::Done)];
    assert_eq!(events(&mut s), expected);
}

#[test]
fn job_that_arrives_during_an_iteration_joins_the_next_one() {
    let mut s = server(plain());
    s.submit(Instant::ZERO, job(1, 10, 2)).unwrap();
    s.handle_timeout(Instant::ZERO);
    s.submit(at_ms(1.0), job(2, 10, 1)).unwrap();
    assert_eq!(s.gauges(), Gauges { running: 1, waiting: 1, kv_tokens: 10 });
    drain(&mut s);
    // The second iteration holds a decode and ten tokens of prompt.
    let expected = vec![
        (20.0, 1, JobProgress::First),
        (41.0, 1, JobProgress::Token),
        (41.0, 1, JobProgress::Done),
        (41.0, 2, JobProgress::First),
        (41.0, 2, JobProgress::Done),
    ];
    assert_eq!(events(&mut s), expected);
}

#[test]
fn late_calls_change_no_event_time() {
    let run = |late: bool| {
        let mut s = server(plain());
        s.submit(Instant::ZERO, job(1, 10, 3)).unwrap();
        if !late {
            s.handle_timeout(at_ms(25.0));
        }
        s.submit(at_ms(25.0), job(2, 10, 1)).unwrap();
        s.handle_timeout(at_ms(10_000.0));
        events(&mut s)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn embedding_is_done_with_its_prompt() {
    let mut s = server(plain());
    s.submit(Instant::ZERO, job(1, 10, 0)).unwrap();
    drain(&mut s);
    assert_eq!(events(&mut s), vec![(20.0, 1, JobProgress::Done)]);
}

#[test]
fn full_batch_admits_waiting_jobs_in_order_of_arrival() {
    let mut s = server(Hardware { seqs_max: 1, ..plain() });
    for id in 1..=3 {
        s.submit(Instant::ZERO, job(id, 1, 1)).unwrap();
    }
    drain(&mut s);
    let firsts: Vec<_> = events(&mut s).into_iter().filter(|e| e.2 == JobProgress::First).collect();
    assert_eq!(
        firsts,
        vec![(11.0, 1, JobProgress::First), (22.0, 2, JobProgress::First), (33.0, 3, JobProgress::First)]
    );
}

#[test]
fn long_prompt_is_computed_in_chunks_alongside_decodes() {
    let mut s = server(Hardware { batched_tokens: 256, ..plain() });
    s.submit(Instant::ZERO, job(1, 1, 4)).unwrap();
    s.handle_timeout(Instant::ZERO);
    s.submit(at_ms(1.0), job(2, 400, 1)).unwrap();
    drain(&mut s);
    let first_of_2 = events(&mut s).into_iter().find(|e| e.1 == 2).unwrap();
    // 11 ms for the first, then 256 tokens (one of them a decode), then 145 + 1.
    assert_eq!(first_of_2, (11.0 + 266.0 + 156.0, 2, JobProgress::First));
}

#[test]
fn full_cache_preempts_the_youngest_job_and_both_finish() {
    let mut s = server(Hardware { kv_tokens: 30, ..plain() });
    s.submit(Instant::ZERO, job(1, 10, 15)).unwrap();
    s.submit(Instant::ZERO, job(2, 10, 15)).unwrap();
    drain(&mut s);
    let events = events(&mut s);
    for id in [1, 2] {
        let tokens = events.iter().filter(|e| e.1 == id && e.2 != JobProgress::Done).count();
        assert_eq!(tokens, 15, "job {id}");
        assert_eq!(events.iter().filter(|e| e.1 == id && e.2 == JobProgress::First).count(), 1, "job {id}");
    }
    let done: Vec<_> = events.iter().filter(|e| e.2 == JobProgress::Done).map(|e| e.1).collect();
    assert_eq!(done, vec![1, 2]);
    assert!(s.totals().preemptions > 0);
    assert_eq!(s.totals().prompt_tokens, 20);
    assert_eq!(s.gauges(), Gauges::default());
}

#[test]
fn cancelled_job_frees_its_place_at_once() {
    let mut s = server(Hardware { seqs_max: 1, ..plain() });
    for id in 1..=3 {
        s.submit(Instant::ZERO, job(id, 10, 5)).unwrap();
    }
    s.handle_timeout(Instant::ZERO);
    assert!(s.cancel(JobId(1)) && s.cancel(JobId(2)));
    assert!(!s.cancel(JobId(1)));
    assert_eq!(s.gauges(), Gauges { running: 0, waiting: 1, kv_tokens: 0 });
    drain(&mut s);
    // The current iteration still ends at 20.
    assert_eq!(events(&mut s).first(), Some(&(40.0, 3, JobProgress::First)));
    assert_eq!((s.totals().cancelled, s.totals().done), (2, 1));
}

#[test]
fn job_that_exceeds_the_cache_is_rejected() {
    let mut s = server(Hardware { kv_tokens: 100, ..plain() });
    let error = SubmitError::TooLong { input: 90, output: 11, kv_tokens: 100 };
    assert_eq!(s.submit(Instant::ZERO, job(1, 90, 11)), Err(error));
    assert_eq!(s.submit(Instant::ZERO, job(2, 90, 10)), Ok(()));
    assert!(matches!(s.submit(Instant::ZERO, job(3, u64::MAX, 1)), Err(SubmitError::TooLong { .. })));
}

#[test]
fn invalid_hardware_is_rejected() {
    let base = Hardware::default();
    for invalid in [
        Hardware { alpha_ms: 0.0, ..base },
        Hardware { beta_ms: -1.0, ..base },
        Hardware { gamma_ms: f64::NAN, ..base },
        Hardware { alpha_ms: f64::INFINITY, ..base },
        Hardware { seqs_max: 0, ..base },
        Hardware { kv_tokens: 0, ..base },
        Hardware { batched_tokens: 255, ..base },
        Hardware { noise: 1.5, ..base },
    ] {
        assert!(Server::new(invalid, 0).is_err(), "{invalid:?}");
    }
}

/// Keeps `n` jobs of `i` input and `o` output tokens at the server: each job that ends is replaced. Returns the mean of
/// (last token - first token) / (o - 1) in milliseconds.
fn itl_of_a_constant_batch(hardware: Hardware, n: u64, i: u64, o: u64, predicted_ms: f64) -> f64 {
    let mut s = server(hardware);
    let mut next = 0;
    // Evenly staggered over the duration of one job. Prompts that share an iteration would not slow each other's decodes.
    while next < n {
        let arrival = at_ms(next as f64 * predicted_ms * o as f64 / n as f64);
        s.submit(arrival, job(next, i, o)).unwrap();
        next += 1;
    }
    let mut first: BTreeMap<JobId, Instant> = BTreeMap::new();
    let (mut sum, mut count) = (0.0, 0_u64);
    while s.totals().done < 40 * n {
        let now = s.poll_timeout().expect("there is always work");
        s.handle_timeout(now);
        while let Some(e) = s.poll_event() {
            match e.progress {
                JobProgress::First => {
                    first.insert(e.id, e.time);
                }
                JobProgress::Token => {}
                JobProgress::Done => {
                    if s.totals().done > 5 * n {
                        sum += e.time.since(first[&e.id]).as_secs_f64() * 1e3 / (o - 1) as f64;
                        count += 1;
                    }
                    s.submit(e.time, job(next, i, o)).unwrap();
                    next += 1;
                }
            }
        }
    }
    sum / count as f64
}

#[test]
fn constant_batch_has_the_itl_of_the_closed_form() {
    let h = Hardware::default();
    for (n, i, o) in [(1, 512, 128), (8, 256, 64), (16, 512, 128), (32, 128, 256), (64, 1_024, 96)] {
        let (fi, fo) = (i as f64, o as f64);
        let delta = h.beta_ms * (fi + fo) / (fo + 1.0) + h.gamma_ms * (fi + fo / 2.0);
        let predicted = h.alpha_ms + n as f64 * delta;
        for noise in [0.0, 0.05] {
            let measured = itl_of_a_constant_batch(Hardware { noise, ..h }, n, i, o, predicted);
            let off = (measured / predicted - 1.0).abs();
            assert!(off < 0.04, "n {n} i {i} o {o}: measured {measured:.3} ms, T(n) {predicted:.3} ms");
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Submit { input: u64, output: u64 },
    Cancel(usize),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0..60_u64, 0..20_u64).prop_map(|(input, output)| Op::Submit { input, output }),
        (0..40_usize).prop_map(Op::Cancel),
        (0..60_000_000_u64).prop_map(Op::Wait),
    ];
    proptest::collection::vec(op, 1..120)
}

proptest! {
    #[test]
    fn every_accepted_job_ends_once_with_all_its_tokens(ops in ops(), seed in any::<u64>()) {
        let hardware = Hardware { kv_tokens: 96, seqs_max: 4, batched_tokens: 32, noise: 0.3, ..Hardware::default() };
        let mut s = Server::new(hardware, seed).unwrap();
        let mut now = Instant::ZERO;
        let mut jobs: Vec<(Job, u64, bool, bool)> = Vec::new();
        let mut last = Instant::ZERO;
        for op in ops.into_iter().map(Some).chain([None]) {
            match op {
                Some(Op::Submit { input, output }) => {
                    let job = job(jobs.len() as u64, input, output);
                    s.submit(now, job).unwrap();
                    jobs.push((job, 0, false, false));
                }
                Some(Op::Cancel(index)) => if let Some((job, _, done, cancelled)) = jobs.get_mut(index) {
                    let found = s.cancel(job.id);
                    prop_assert_eq!(found, !*done && !*cancelled);
                    *cancelled |= found;
                },
                Some(Op::Wait(nanos)) => {
                    now = Instant::from_nanos(now.as_nanos() + nanos);
                    s.handle_timeout(now);
                }
                None => drain(&mut s),
            }
            while let Some(e) = s.poll_event() {
                prop_assert!(e.time >= last);
                last = e.time;
                let (job, tokens, done, cancelled) = &mut jobs[e.id.0 as usize];
                prop_assert!(!*done && !*cancelled);
                match e.progress {
                    JobProgress::First => { prop_assert_eq!(*tokens, 0); *tokens += 1; }
                    JobProgress::Token => { prop_assert!(*tokens > 0); *tokens += 1; }
                    JobProgress::Done => { prop_assert_eq!(*tokens, job.output); *done = true; }
                }
            }
            let g = s.gauges();
            prop_assert!(g.kv_tokens <= 96 && g.running <= 4);
            let t = s.totals();
            prop_assert_eq!(t.submitted, t.done + t.cancelled + (g.running + g.waiting) as u64);
        }
        prop_assert_eq!(s.gauges(), Gauges::default());
        prop_assert!(jobs.iter().all(|(_, _, done, cancelled)| done != cancelled));
    }
}
