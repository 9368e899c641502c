//! The page: the tables of all experiments.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use penstock_studies::markdown::{head, line, number, percent, rows};

type Part = fn(&mut String, &Value);

/// The page of all experiments that have figures.
pub(crate) fn page(figures: &Map<String, Value>) -> String {
    let mut text = String::from(HEAD);
    let parts: [(&str, Part); 4] =
        [("learned", learned), ("gate", gate), ("servers", servers), ("replicas", replicas)];
    for (name, write) in parts {
        if let Some(figures) = figures.get(name) {
            write(&mut text, figures);
        }
    }
    text
}

const HEAD: &str = "# The model in a closed loop

`just model` writes this page, and all figures to [model.json](model.json). Every experiment is a seeded simulation in
virtual time, so it gives the same figures on every machine. A closed loop consists of clients, the engine, the autopilot
that learns the engine's budgets, and servers with iteration-level batching and known alpha, beta and gamma. The autopilot
sees the same data as in the companion: bytes of prompts, times of first and last tokens, and token counts from servers.
Each request decodes at a pace of its own (the noise below).

Sizes are log-normal (deviation of the logarithm 0.5). Mean prompt and output tokens: chat 512 and 128, long 8,000 and 150,
code 2,000 and 400. Mixed is 60 % chat, 10 % long and 30 % code. Servers, with alpha, beta and gamma in ms: fast 5, 0.02,
0.0001; middle 8, 0.05, 0.0005; slow 20, 0.12, 0.0008.
";

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn or_dash(value: &Value) -> String {
    if value.is_null() { "-".to_string() } else { value.to_string() }
}

/// `, 3 never` if the count is above zero.
fn remark(count: &Value, text: &str) -> String {
    match count.as_u64() {
        Some(count @ 1..) => format!(", {count} {text}"),
        _ => String::new(),
    }
}

/// Median and worst value of one error.
fn error(figures: &Value) -> String {
    let missing = remark(&figures["missing"], "without");
    format!("{} ({}){missing}", percent(&figures["median"]), percent(&figures["worst"]))
}

fn learned(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Learning behind its own gate\n\n{} servers. The offered load is {} times their capacity within targets inferred at \
         k = 3, so the gate determines the load from which it learns. The errors of n* and lambda* refer to the closed forms at \
         the true parameters, the mix's sizes and a bias of 1. Each cell shows the median (worst) of {} seeds at the end of the \
         first window after the given number of requests per endpoint. The exported n* is the one in /metrics: it uses the sizes \
         of served requests, which with fair queueing differ from the offered sizes (mixed), and the learned bias. Kalman: a \
         filter over the windows of the same runs.",
        figures["servers"], figures["offered"], figures["seeds"]
    );
    learned_combinations(text, figures);
    learned_long(text, figures);
    learned_doubled(text, figures);
    learned_constant(text, figures);
}

fn learned_combinations(text: &mut String, figures: &Value) {
    for (key, title) in [("early", "200"), ("late", "3,000")] {
        let _ = writeln!(text, "\nAfter {title} requests per endpoint:");
        head(
            text,
            &[
                "servers",
                "traffic",
                "noise",
                "true n*",
                "converged",
                "n*",
                "lambda*",
                "exported n*",
                "Kalman n*",
                "Kalman lambda*",
            ],
        );
        for row in rows(&figures["combinations"]) {
            let moment = &row[key];
            line(
                text,
                &[
                    word(&row["hardware"]).into(),
                    word(&row["traffic"]).into(),
                    percent(&row["noise"]),
                    number(&row["n_star"], 1),
                    format!("{} of {}", moment["converged"], moment["runs"]),
                    error(&moment["n_star"]),
                    error(&moment["lambda_star"]),
                    error(&moment["exported_n_star"]),
                    error(&moment["kalman_n_star"]),
                    error(&moment["kalman_lambda_star"]),
                ],
            );
        }
    }
}

fn learned_long(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n100,000 requests at 10 % noise: smallest and largest n* as a multiple of the true n*, after the first 3,000 requests \
         per endpoint.\n\n![n* over 100,000 requests](model-long.svg)"
    );
    head(text, &["servers", "traffic", "requests", "windows converged", "n*", "Kalman n*"]);
    for row in rows(&figures["long"]) {
        let range =
            |range: &Value| format!("{} to {}", number(&range["least"], 3), number(&range["most"], 3));
        line(
            text,
            &[
                word(&row["hardware"]).into(),
                word(&row["traffic"]).into(),
                row["requests"].to_string(),
                percent(&row["windows_converged"]),
                range(&row["n_star"]["reservoir"]),
                range(&row["n_star"]["kalman"]),
            ],
        );
    }
}

fn learned_doubled(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\nAlpha doubled after 3,000 requests (one middle server): requests until n* and lambda* were within 10 % of the new \
         truth and stayed there for ten windows; median (worst) of {} seeds.",
        figures["seeds"]
    );
    head(text, &["traffic", "noise", "relearned after", "Kalman"]);
    for row in rows(&figures["doubled"]) {
        let requests = |requests: &Value| {
            let never = remark(&requests["never"], "never");
            let (median, worst) = (&requests["median"], &requests["worst"]);
            format!("{} ({}){never}", number(median, 0), number(worst, 0))
        };
        line(
            text,
            &[
                word(&row["traffic"]).into(),
                percent(&row["noise"]),
                requests(&row["reservoir"]),
                requests(&row["kalman"]),
            ],
        );
    }
}

fn learned_constant(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\nConstant load (8 clients, requests of one size, no probing): share of the windows in each state."
    );
    head(
        text,
        &["noise", "no_traffic", "learning", "unidentifiable", "converged", "windows with parameters"],
    );
    for row in rows(&figures["constant"]) {
        let states = &row["states"];
        line(
            text,
            &[
                percent(&row["noise"]),
                percent(&states["no_traffic"]),
                percent(&states["learning"]),
                percent(&states["unidentifiable"]),
                percent(&states["converged"]),
                row["numbers_exported"].to_string(),
            ],
        );
    }
}

fn gate(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## `auto` compared with the best fixed watermark\n\n{} middle servers. The target is {} ms between tokens (and 10 s to the \
         first token, too high to matter). Offered: the load in every phase as a multiple of the capacity within the target. \
         Noise 5 %; 16 minutes after a warm-up of 8; mean of {} seeds. Goodput: output tokens per second of responses with a \
         mean time between tokens within the target. The best fixed watermark is the one with the most goodput in a coarse and \
         then fine search. The best that keeps the target has the most goodput among the watermarks with at most {} of the \
         responses over the target. With prompts: prompt tokens count as well, and the comparison is with the best fixed \
         watermark by that measure.\n\n![goodput by watermark](model-gate.svg)",
        figures["servers"],
        figures["itl_slo_ms"],
        figures["seeds"],
        percent(&figures["keeps"])
    );
    head(
        text,
        &[
            "traffic",
            "offered",
            "best fixed",
            "its goodput",
            "over target",
            "auto",
            "over target",
            "auto / best fixed",
            "with prompts",
            "auto / best that keeps the target",
            "auto, parameters known",
        ],
    );
    for row in rows(&figures["scenes"]) {
        let (fixed, auto) = (&row["best_fixed"], &row["auto"]);
        line(
            text,
            &[
                word(&row["traffic"]).into(),
                number(&row["offered"], 1),
                number(&fixed["watermark"], 1),
                number(&fixed["worth"]["goodput_tokens_s"], 0),
                percent(&fixed["worth"]["over_slo"]),
                number(&auto["goodput_tokens_s"], 0),
                percent(&auto["over_slo"]),
                number(&row["ratio"], 2),
                number(&row["ratio_with_prompts"], 2),
                format!(
                    "{} ({})",
                    number(&row["ratio_to_one_that_keeps"], 2),
                    number(&row["best_fixed_that_keeps"]["watermark"], 1)
                ),
                number(&row["auto_with_true_parameters"]["goodput_tokens_s"], 0),
            ],
        );
    }
}

fn servers(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Servers of different speed\n\nTwo middle servers and one with half their speed (a separate variant) in one pool. Chat, \
         target 50 ms between tokens, offered 1.2 times the capacity, noise 5 %, 15 minutes after a warm-up of 5. The true n* is \
         the one at the target; budgets use 0.9 of the target."
    );
    head(
        text,
        &[
            "gate",
            "variant",
            "true n*",
            "learned n*",
            "in flight",
            "ms between tokens",
            "over target",
            "requests/s",
        ],
    );
    for row in rows(figures) {
        for server in rows(&row["servers"]) {
            line(
                text,
                &[
                    word(&row["gate"]).into(),
                    word(&server["variant"]).into(),
                    number(&server["n_star"], 1),
                    number(&server["learned_n_star"], 1),
                    number(&server["in_flight"], 1),
                    number(&server["itl_ms"], 1),
                    percent(&server["over_slo"]),
                    number(&server["requests_s"], 2),
                ],
            );
        }
    }
}

fn replicas(text: &mut String, figures: &Value) {
    let _ = writeln!(
        text,
        "\n## Replicas\n\n{} middle servers, chat, inferred targets. The load is a multiple of the servers' capacity, ten minutes \
         each; windows are 10 s long. The needed replicas include the backlog: a full flow queue of 100 requests within a TTL \
         of 30 s.\n\n![desired replicas](model-replicas.svg)",
        figures["servers"]
    );
    head(
        text,
        &[
            "load",
            "needed",
            "desired: median (least to most)",
            "absent in",
            "as needed from window",
            "at the end",
        ],
    );
    for row in rows(&figures["phases"]) {
        line(
            text,
            &[
                number(&row["load"], 1),
                row["needed"].to_string(),
                format!(
                    "{} ({} to {})",
                    or_dash(&row["median"]),
                    or_dash(&row["least"]),
                    or_dash(&row["most"])
                ),
                format!("{} of {}", row["absent"], row["windows"]),
                or_dash(&row["windows_until_needed"]),
                or_dash(&row["last"]),
            ],
        );
    }
}
