//! Recordings of servers whose parameters are 8, .05 and .0005.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::run::number;

/// The sequence of the vectors' generator: windows of a server of (8, .05, .0005).
pub(crate) fn windows(count: usize, change: impl Fn(usize, &mut [f64; 5])) -> String {
    const RHO: [f64; 6] = [0.1, 0.3, 0.5, 0.6, 0.45, 0.2];
    const INPUT: [f64; 5] = [256.0, 1024.0, 512.0, 2048.0, 128.0];
    const OUTPUT: [f64; 4] = [64.0, 256.0, 128.0, 32.0];
    let line = |k: usize| {
        let (rho, i, o) = (RHO[k % 6], INPUT[k % 5], OUTPUT[k % 4]);
        let mut window = window(rho, i, o);
        change(k, &mut window);
        let [rate, input, output, ttft, itl] = window;
        json!({"t": 10 * k, "rate": rate, "input": input, "output": output, "ttft": ttft, "itl": itl})
            .to_string()
    };
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn window(rho: f64, i: f64, o: f64) -> [f64; 5] {
    let (alpha, beta, gamma) = (8.0, 0.05, 0.0005);
    let delta = beta * (i + o) / (o + 1.0) + gamma * (i + o / 2.0);
    let iteration = alpha / (1.0 - rho);
    let itl = iteration + beta + gamma * (i + f64::midpoint(o, 1.0));
    [rho * 1000.0 / ((o + 1.0) * delta), i, o, iteration + (beta + gamma) * i, itl]
}

/// A recording of two identical batching servers of (8, .05, .0005) with `count` requests: one JSON line per request, in order of
/// dispatch.
pub(crate) fn requests(count: u64) -> Vec<Value> {
    let mut lines = Vec::new();
    for endpoint in ["a", "b"] {
        let mut random = Random(7 + u64::from(endpoint == "b"));
        let mut waiting = VecDeque::new();
        let mut time = 0.0;
        for number in 0..count {
            // Slow, then faster: the recording covers more than one load.
            let gap = if number < count / 2 { 400.0 } else { 180.0 };
            time += -gap * random.next().ln();
            waiting.push_back((
                time,
                200.0 + (600.0 * random.next()).floor(),
                40.0 + (120.0 * random.next()).floor(),
            ));
        }
        serve(endpoint, waiting, &mut lines);
    }
    let arrival = |line: &Value| number(&line["t"]);
    lines.sort_by(|a, b| arrival(a).total_cmp(&arrival(b)));
    lines
}

/// One iteration after another: waiting requests join the batch, their prompts are computed whole, every other request makes a token.
pub(crate) fn serve(endpoint: &str, mut waiting: VecDeque<(f64, f64, f64)>, lines: &mut Vec<Value>) {
    let mut now = 0.0_f64;
    let mut batch: Vec<((f64, f64, f64), f64, f64)> = Vec::new();
    while !(waiting.is_empty() && batch.is_empty()) {
        if batch.is_empty() {
            now = now.max(waiting[0].0);
        }
        let come = waiting.iter().take_while(|request| request.0 <= now).count();
        let new: Vec<_> = waiting.drain(..come).collect();
        let prompts: f64 = new.iter().map(|request| request.1).sum();
        let held: f64 = batch.iter().map(|(request, made, _)| request.1 + made).sum();
        now += 8.0 + 0.05 * (batch.len() as f64 + prompts) + 0.0005 * (held + prompts);
        batch.iter_mut().for_each(|running| running.1 += 1.0);
        batch.extend(new.into_iter().map(|request| (request, 1.0, now)));
        batch.retain(|((arrival, input, output), made, first)| {
            if made >= output {
                lines.push(
                    json!({"t": arrival / 1e3, "input": input, "output": output, "dispatched": arrival / 1e3,
                                  "first": first / 1e3, "done": now / 1e3, "endpoint": endpoint}),
                );
            }
            made < output
        });
    }
}

/// xorshift, from 0 to 1.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }
}

pub(crate) fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}
