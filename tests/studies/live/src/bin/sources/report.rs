//! The page docs/bench/sources.md, written from the figures of all parts.

use std::fmt::Write as _;

use penstock_tests::binary::workspace;
use serde_json::Value;

use penstock_studies::markdown::{head, line, number, percent, rows};

const HEAD: &str = "\
# What the sources promise, measured

Penstock took its ideas from systems that promise something to their users or measured themselves. This page repeats those
measurements with Penstock. `just bench sources` measures and writes the page and its figures
([results.json](results.json), under `sources`); `just bench sources nexus` (or `overload`, `fairness`, `replicas`) repeats one
section. The first section runs a real Envoy with clients and model servers on one machine, so its times contain theirs. The others
are seeded closed loops in virtual time, with the same figures on every machine: [the model's page](model.md) describes such a
loop, its servers (the middle ones) and its traffic.
";

/// Writes the page. A part without figures is left out.
///
/// # Panics
/// If the page cannot be written.
pub(crate) fn write(figures: &Value) {
    let mut text = HEAD.to_owned();
    let mut add = |name: &str, section: fn(&mut String, &Value)| {
        if !figures[name].is_null() {
            section(&mut text, &figures[name]);
        }
    };
    add("nexus", nexus);
    add("overload", overload);
    add("fairness", fairness);
    add("replicas", replicas);
    println!("{text}");
    std::fs::write(workspace().join("docs/bench/sources.md"), text).expect("write the page");
}

/// A time in milliseconds, in seconds from one second.
fn time(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(millis) if millis >= 1_000.0 => format!("{:.1} s", millis / 1e3),
        Some(millis) => format!("{millis:.1} ms"),
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn nexus(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Nexus: the success criteria of its queue\n\nThe criteria are those of the specification of request queueing and \
         prioritization in [nexus](https://github.com/leocamello/nexus) (F18), with the stricter figure where its documents differ. \
         Two model servers with four places each, 50 ms a response; {}.",
        word(&figures["machine"])
    );
    head(text, &["criterion", "promise", "measured"]);
    for (criterion, promise, measured) in criteria(figures) {
        line(text, &[criterion.to_owned(), promise.to_owned(), measured]);
    }
    text.push_str(
        "\nSC-002 holds where responses take different times, as those of model servers do: a place becomes free every few milliseconds. \
         Where all take exactly the same time, high priority waits for up to one response, whatever the gateway does, because running \
         requests aren't interrupted. That is a tenth of what normal priority waits only if normal priority waits for ten responses.\n",
    );
}

/// Criterion, promise and measurement.
fn criteria(figures: &Value) -> [(&'static str, &'static str, String); 11] {
    let spread = |times: &Value| {
        format!(
            "p50 {}, p99 {}, most {} ({})",
            time(&times["p50"]),
            time(&times["p99"]),
            time(&times["max"]),
            times["count"]
        )
    };
    let burst = &figures["burst"];
    [
        (
            "SC-001",
            "95 % of the requests that a gateway without a queue refuses in a burst are served",
            format!(
                "{}: of {} requests at once, {} are refused without a queue and {} with it",
                percent(&burst["saved"]),
                burst["requests"],
                burst["refused_without"],
                burst["refused_with"]
            ),
        ),
        (
            "SC-002",
            "high priority waits 90 % less than normal priority",
            format!(
                "responses of 25 to 75 ms: {}. All of exactly 50 ms, so that the places become free in step and high priority waits for a \
                 whole response: {}",
                waits(&figures["priority"]),
                waits(&figures["priority_in_step"])
            ),
        ),
        (
            "SC-003",
            "the queue's length is in the metrics within 100 ms",
            format!("{}, with the client's request and the scrape", spread(&figures["depth"]["lag"])),
        ),
        (
            "SC-004",
            "a request that has waited for its time is answered within 100 ms",
            spread(&figures["timeout"]["late"]),
        ),
        ("SC-005", "a full queue refuses within 10 ms", spread(&figures["refusal"]["time"])),
        (
            "SC-006",
            "at a shutdown every waiting request is answered 503 within 1 s",
            spread(&figures["shutdown"]["time"]),
        ),
        (
            "SC-007",
            "100 concurrent requests neither corrupt the queue nor let its length drift",
            format!(
                "{} at once: {} counted, length {} afterwards",
                burst["requests"],
                number(&burst["counted"], 0),
                number(&burst["depth_afterwards"], 0)
            ),
        ),
        (
            "SC-008",
            "a change of the configuration holds after a restart",
            format!(
                "without a restart, {} ms from `PATCH /config` until a request met it",
                number(&figures["configuration"]["ms"], 1)
            ),
        ),
        (
            "SC-009",
            "a queue that comes near its size can be seen in the metrics",
            format!(
                "`penstock_queue_length` / `penstock_queue_capacity`, {} at a full queue; the alert PenstockQueueNearlyFull fires above 0.80",
                number(&figures["depth"]["used_room_of_a_full_queue"], 2)
            ),
        ),
        (
            "SC-010",
            "a failed attempt is queued again, and no request is lost",
            format!(
                "{} requests, {} at a server that is killed: {} failed",
                figures["requeue"]["requests"],
                figures["requeue"]["at_the_killed_server"],
                figures["requeue"]["failed"]
            ),
        ),
        (
            "SC-011",
            "the answer to a timeout says when to retry, by the depth of the queue",
            retries(&figures["retry"]),
        ),
    ]
}

/// How much less high priority waits than normal priority.
fn waits(priority: &Value) -> String {
    let part = |figure: &str| {
        format!(
            "{} {} less ({} and {})",
            figure,
            percent(&priority["less"][figure]),
            time(&priority["high"][figure]),
            time(&priority["normal"][figure])
        )
    };
    format!(
        "{}, {}, {} ({} and {} requests)",
        part("p50"),
        part("p99"),
        part("mean"),
        priority["high"]["count"],
        priority["normal"]["count"]
    )
}

fn retries(retry: &Value) -> String {
    let row = |row: &Value| {
        format!(
            "{} waiting, {} served a second: {} (p99 {}; {})",
            number(&row["waiting"], 0),
            number(&row["served_per_s"], 0),
            time(&row["told"]["p50"]),
            time(&row["told"]["p99"]),
            row["told"]["count"]
        )
    };
    let told: Vec<String> = rows(retry).map(row).collect();
    format!("`retry-after-ms` with {}", told.join("; "))
}

fn overload(text: &mut String, figures: &Value) {
    let (low, high) = (&figures["bursts"][0], &figures["bursts"][1]);
    let _ = writeln!(
        text,
        "\n## Gateway API Inference Extension: with and without flow control\n\n{} servers; a target of 50 ms between tokens. The load \
         alternates between {} times the capacity within the target for {} s and {} times for {} s, half of the requests from people \
         (512 and 128 tokens), half from a batch job (2,000 and 400). Every request is served, so a gate can't gain by refusing. Times \
         are from the arrival at the gateway to the first token, over {} s. Utilisation: the part of the time in which a server has \
         work.",
        figures["servers"], low[0], low[1], high[0], high[1], figures["recorded_s"]
    );
    head(
        text,
        &[
            "gate",
            "first token: mean",
            "p50",
            "p99",
            "p999",
            "people: mean",
            "p99",
            "last token: mean",
            "between tokens",
            "over target",
            "utilisation",
            "output tokens/s",
        ],
    );
    for gate in rows(&figures["gates"]) {
        line(
            text,
            &[
                word(&gate["gate"]),
                time(&gate["all"]["mean"]),
                time(&gate["all"]["p50"]),
                time(&gate["all"]["p99"]),
                time(&gate["all"]["p999"]),
                time(&gate["people"]["mean"]),
                time(&gate["people"]["p99"]),
                time(&gate["whole"]["mean"]),
                time(&gate["itl_ms"]),
                percent(&gate["over_target"]),
                percent(&gate["utilisation"]),
                number(&gate["output_tokens_s"], 0),
            ],
        );
    }
    text.push_str(
        "\nA gate doesn't make servers faster. It lets requests wait in the gateway, in a fair order, instead of slowing down every running \
         response: tokens come within the target, and the whole response is about as early as without a gate. The batch job waits; with \
         fair queueing the people hardly do.\n",
    );
    let _ = writeln!(
        text,
        "\nTokens or requests as the cost, and fair queueing or first come first served: steady {} times the capacity, so that two \
         tenants always have requests waiting. The requests of one (2,000 and 400 tokens) are larger than those of the other (512 and \
         128). A third, light tenant sends 3 % of the requests. A ratio of 1 is an equal share, an output token counted as two.",
        number(&figures["overload"], 1)
    );
    head(
        text,
        &[
            "gate",
            "discipline",
            "cost",
            "large to small: tokens",
            "requests",
            "light: first token, mean",
            "p99",
            "served",
            "over target",
            "output tokens/s",
        ],
    );
    for discipline in rows(&figures["disciplines"]) {
        line(
            text,
            &[
                word(&discipline["gate"]),
                word(&discipline["discipline"]),
                word(&discipline["cost"]),
                number(&discipline["tokens_large_to_small"], 3),
                number(&discipline["requests_large_to_small"], 3),
                time(&discipline["light"]["mean"]),
                time(&discipline["light"]["p99"]),
                percent(&discipline["light_served"]),
                percent(&discipline["over_target"]),
                number(&discipline["output_tokens_s"], 0),
            ],
        );
    }
    text.push_str(
        "\nWithout a gate, requests wait in the servers' own queues, first come, first served and without a limit, so the light tenant waits \
         behind all others.\n",
    );
}

fn fairness(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Kthena: the distribution of tokens over users\n\n{} users offer {} times the capacity of 3 servers for {} s, user n in \
         proportion to 1/n. A user's fair part is its max-min fair share of the tokens that were served: what it offers, if that is \
         less than an equal part of what the others leave. Jain's index of what the users got over their fair parts is 1 if all got \
         theirs.",
        figures["users"],
        number(&figures["offered"], 1),
        figures["recorded_s"]
    );
    head(
        text,
        &[
            "discipline",
            "Jain's index",
            "least of a fair part",
            "most",
            "tokens of the heaviest user",
            "lightest: first token, mean",
            "heaviest: mean",
        ],
    );
    for discipline in rows(&figures["rows"]) {
        line(
            text,
            &[
                word(&discipline["discipline"]),
                number(&discipline["jain"], 4),
                percent(&discipline["least"]),
                percent(&discipline["most"]),
                percent(&discipline["heaviest_share"]),
                time(&discipline["lightest"]["mean"]),
                time(&discipline["heaviest"]["mean"]),
            ],
        );
    }
}

fn replicas(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Workload Variant Autoscaler: replicas against load\n\n{} servers with a model that has seen nothing yet; the load is a \
         multiple of their capacity within the target. Above capacity the queue is full, and its requests have to be served within \
         their ttl as well; without load one server stays. The number of servers doesn't change, so the signal is seen alone. `penstock_desired_replicas` and its source \
         (docs/model.md).",
        figures["servers"]
    );
    head(
        text,
        &[
            "load",
            "for",
            "needed",
            "first signal",
            "more than there are after",
            "needed after",
            "at the end",
            "most",
        ],
    );
    let seconds =
        |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
    for phase in rows(&figures["phases"]) {
        let (first, end) = (&phase["first"], &phase["at_end"]);
        line(
            text,
            &[
                number(&phase["load"], 1),
                seconds(&phase["seconds"]),
                phase["needed"].to_string(),
                format!("{} ({}) after {}", first[1], word(&first[2]), seconds(&first[0])),
                format!(
                    "{} ({})",
                    seconds(&phase["more_than_ready_after_s"]),
                    word(&phase["more_than_ready_by"])
                ),
                seconds(&phase["needed_after_s"]),
                format!("{} ({})", end[0], word(&end[1])),
                phase["most"].to_string(),
            ],
        );
    }
}
