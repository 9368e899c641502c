//! The page: what was compared, what it teaches, and all tables.

use serde_json::{Map, Value};

use crate::tables::{cells, policy};
use penstock_studies::markdown::{head, line, number, rows};

/// The row that stands for Penstock in the table of goals.
const PENSTOCK: &str = "auto, wfq and bands";
const BEST_FIXED: &str = "fixed limit, fifo";
const AUTO_FIFO: &str = "auto, fifo";

/// The whole page.
pub(crate) fn text(figures: &Map<String, Value>) -> String {
    let none = Value::Null;
    let part = |name: &str| figures.get(name).unwrap_or(&none);
    let mut text = String::from(HEAD);
    head(&mut text, &["workload", "requests"]);
    for workload in rows(part("workloads")) {
        let word = |key: &str| workload[key].as_str().unwrap_or_default().to_string();
        line(&mut text, &[word("name"), word("source")]);
    }
    text.push_str(COMPARED);
    goals(&mut text, part("cells"));
    text.push_str(LESSONS);
    gateway(&mut text, part("gateway"));
    text.push_str(ALL);
    cells(&mut text, part("cells"));
    text
}

/// Penstock beside the best fixed limit and beside fifo, at twice the capacity.
fn goals(text: &mut String, cells: &Value) {
    head(
        text,
        &[
            "at twice the capacity",
            "good requests",
            "good tokens",
            "Jain, greedy tenants",
            "urgent: wait below auto with fifo",
            "below the fixed limit with fifo",
        ],
    );
    for cell in rows(cells).filter(|cell| cell["load"] == 2.0) {
        let (ours, fixed, fifo) = (policy(cell, PENSTOCK), policy(cell, BEST_FIXED), policy(cell, AUTO_FIFO));
        let value = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let times = |key| format!("{:.2} times", value(ours, key) / value(fixed, key));
        let less = |than: &Value| {
            let wait = value(than, "urgent_wait_ms");
            if wait > 0.0 {
                format!("{:.0} %", 100.0 * (1.0 - value(ours, "urgent_wait_ms") / wait))
            } else {
                "nothing waits there".into()
            }
        };
        let word = |key: &str| cell[key].as_str().unwrap_or_default();
        line(
            text,
            &[
                format!("{}, {}", word("workload"), word("fleet")),
                times("good_requests_s"),
                times("good_tokens_s"),
                number(&ours["jain_greedy"], 4),
                less(fifo),
                less(fixed),
            ],
        );
    }
}

/// The simulator beside the real gateway.
fn gateway(text: &mut String, cells: &Value) {
    text.push_str(GATEWAY);
    head(text, &["cell", "figure", "simulated", "real gateway", "difference"]);
    for cell in rows(cells) {
        let name = cell["cell"].as_str().unwrap_or_default();
        for (index, (label, key)) in [
            ("good requests/s", "good_requests_s"),
            ("good tokens/s", "good_tokens_s"),
            ("served requests/s", "served_s"),
            ("small tenants: TTFT p50, ms", "small_p50_ms"),
            ("small tenants: TTFT p99, ms", "small_p99_ms"),
            ("time between tokens p50, ms", "itl_p50_ms"),
            ("time between tokens p99, ms", "itl_p99_ms"),
            ("part of the greedy tenant's tokens", "greedy_share"),
        ]
        .into_iter()
        .enumerate()
        {
            let (simulated, real) = (&cell["simulated"][key], &cell["real"][key]);
            let difference =
                simulated.as_f64().zip(real.as_f64()).map(|(simulated, real)| real / simulated - 1.0);
            let digits = if key == "greedy_share" { 3 } else { 1 };
            line(
                text,
                &[
                    if index == 0 { name.to_string() } else { String::new() },
                    label.into(),
                    number(simulated, digits),
                    number(real, digits),
                    difference.map_or_else(|| "-".into(), |part| format!("{:+.1} %", 100.0 * part)),
                ],
            );
        }
    }
}

const HEAD: &str = "# Outcomes: what each policy serves in time

This page shows what policies for the same servers and the same traffic lead to: how many requests are served within their latency
targets, how long small tenants wait beside greedy ones, and how much work is wasted. `just bench outcome` writes it and
[outcome.json](outcome.json). The comparison runs in virtual time with the real engine and autopilot ([simulate](../simulate.md) lists
what a simulation leaves out), so it gives the same figures on every machine. Three cells were also [measured with a real
gateway](#simulator-and-real-gateway).

    just bench outcome --chat AzureLLMInferenceTrace_conv.csv

The trace is part of [Azure's public dataset](https://github.com/Azure/AzurePublicDataset) (CC-BY 4.0; Patel et al., \"Splitwise\", ISCA
2024). Without `--chat` and `--code`, both workloads are made up.

## What is compared
";

const COMPARED: &str = "
- **Load**: a workload's arrivals are compressed to 0.5, 0.9, 1.2 or 2 times the capacity: the rate of its mean request that the servers
  can serve within the targets, by the [closed form](../model.md). The trace repeats when it ends. Requests arrive for 25 minutes; the
  first 5 don't count, so that the autopilot has learned.
- **Targets**: 2 s from the arrival at the gateway to the first token, 50 ms between tokens. *Good* is a request that meets both.
- **Servers**: four equal ones (alpha 8 ms, beta 0.05 ms, gamma 0.0005 ms), or two of them and two that are half as fast. They batch like
  vLLM, and each request decodes at a pace of its own (5 %).
- **Tenants**: two greedy ones with 30 % and 20 % of the requests, a batch job with 20 %, and 15 with 2 % each: 14 small ones and an urgent
  one. At twice the capacity a small tenant asks for less than an equal part of the capacity, and a greedy one for several times as much.
  *Bands* in a policy's name: the urgent tenant has priority `critical`, the batch job `sheddable`.

| policy | what it is |
|---|---|
| no gate | Every request goes to a server at once: to the one with the fewest requests, or to each in turn. The server queues. |
| limit of requests/s per tenant | What gateways call a rate limit: the same token bucket for each tenant, 429 above it, and then no gate. The best of seven rates, found by search in each cell. |
| fixed limit | A number of requests in flight at each server and a longest wait, both found by search in each cell, for the most good requests with `fifo`. An operator would have to know the traffic in advance. |
| auto | Penstock's learned gate with the same configuration in all cells: `watermark_per_backend: auto`, the targets, and `ttl: 1500ms`. |

| column | meaning |
|---|---|
| good req/s, good tokens/s | Requests within both targets, and their prompt and output tokens, per second of arrivals. |
| in time | Their part of all requests, or of those of the small tenants. |
| TTFT p50, p99 | From the arrival at the gateway to the first token, of the small tenants' served requests. |
| urgent | The urgent tenant: the same p99, and the mean wait in the gateway. |
| Jain | Jain's index of the tokens that tenants were served while requests arrived, each over its max-min fair part within its band: 1 if all got theirs. |
| busy | Part of the time in which a server computes. |
| refused | Part of the requests that were rejected or expired. |
| wasted | Part of the served tokens that missed a target. |
| replicas | The median of `penstock_desired_replicas` over the run; there are four. |

## Penstock beside the best fixed limit

`auto` with `wfq` and bands, compared with `fifo` under the fixed limit that is best in the same cell. *Greedy tenants* are always
backlogged and have equal weights. The urgent tenant's mean wait is compared with that under `fifo` without priorities, behind the same
gate and behind the fixed limit, which bounds every wait to a second or less and refuses the rest.
";

const LESSONS: &str = "
## What it teaches

- **Below the capacity, the policy hardly matters.** At half of it, every policy serves nearly everything in time, except round robin over
  two kinds of servers (84 % of the chats): the slow ones get as many requests as the fast ones.
- **Without a gate, more load means less service.** A server accepts every request, so all of them become slow together. Sent to the
  server with the fewest requests, 69 to 77 % of the chats are in time at 0.9 times the capacity, under 7 % at 1.2 times, and none at twice
  the capacity.
- **A fixed limit is good where it fits.** The best one is 2 to 6 requests a server for code and 16 to 32 for chats. None fits alternating
  traffic: there `auto` serves 1.8 times as many requests and 2.4 to 2.8 times as many tokens in time at twice the capacity. `auto` has the
  same configuration in every cell.
- **Limits of requests per second protect small tenants and waste capacity.** With chats on equal servers, at 0.9 and 1.2 times the
  capacity, they give small tenants even more than Penstock does (99 % in time, Penstock 96 to 99 %). But they refuse where there is room,
  and count a short request like a long one: at twice the capacity, 28 to 53 % fewer requests are in time than with Penstock, and of those of
  small tenants 55 to 83 %.
- **Fair queueing decides which tenant's requests are late.** At twice the capacity, `fifo` behind the best fixed limit serves 29 to 45 % of
  the small tenants' requests in time, `auto` with `wfq` 88 to 93 %, with `usage` 92 to 95 %. `usage` remembers what a tenant used while it
  had nothing waiting, which helps tenants whose requests come in small bursts.
- **Set `queue.ttl` to the wait that clients accept.** With the default of 30 s, the greedy tenants' requests are served after their targets
  have passed: at 1.2 times the capacity, 45 to 69 % of the work is wasted. Small tenants lose less, 87 to 95 % of their requests are in
  time.
- **Priority works.** At twice the capacity, the urgent tenant waits 89 to 96 % less than under `fifo` behind the same gate.
- **The replicas asked for follow the load**: 2 or 3 at half of the capacity of four servers, and 7 to 9 at twice the capacity, although
  an overloaded server's throughput no longer shows how much is asked for.

Where Penstock doesn't win:

- **Code completions, in tokens.** Answers of 13 tokens make the servers' work nearly all prefill, and `auto` stays further below the
  targets than it needs to: 2 to 4 % of its work misses them, 6 to 14 % behind the fixed limit. From 0.9 times the capacity on, it serves
  0.95 to 1.27 times as many requests in time as the best fixed limit, but 4 to 11 % fewer tokens.
- **`auto` with `fifo` serves more requests in time than with `wfq`**: 21.6 and 18.4 chats a second at twice the capacity of equal servers.
  Under `fifo`, every tenant loses the same part, and short requests fit in between. Fairness in tokens has this price.
- **The urgent tenant's p99.** Its requests wait briefly on average, but a long prompt waits until a server has room for all of it, so the
  99th percentile of its first tokens is 1 to 2 s in overload.
";

const GATEWAY: &str = "
## Simulator and real gateway

The same requests at the same times, once in the simulator and once through a real Envoy with filter and companion, in front of two
`penstock mock-server`s (alpha 12 ms, beta 0.1 ms, gamma 0.001 ms) on one machine. The traffic is that of `penstock simulate --scenario
steady` and `greedy`. A real request states its number of output tokens in `max_tokens`, which the engine then expects; a simulated one
doesn't. The real side includes the network, the proxy, and delays of a machine with two cores that also runs clients and servers. Every
prompt begins differently: servers of the simulator have no prefix caches, and neither has the mock server. Where prompts begin alike and
the servers don't cache, `auto` admits too much, because the engine takes those beginnings for cached (measured: 59 instead of 42 ms
between tokens).
";

const ALL: &str = "
## All cells
";
