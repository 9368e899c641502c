//! model.json, and the same as tables and plots for people.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value};

use crate::plots;

type Part = fn(&mut String, &Value);

/// The figures of every experiment, by name.
#[derive(Debug)]
pub(crate) struct Report(Map<String, Value>);

impl Report {
    /// What is there already; nothing, if it isn't readable.
    pub(crate) fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join("model.json")).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    pub(crate) fn set(&mut self, name: &str, figures: Value) {
        self.0.insert(name.to_string(), figures);
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let json = serde_json::to_string(&self.0).map_err(io::Error::other)?;
        fs::write(dir.join("model.json"), json + "\n")?;
        fs::write(dir.join("model.md"), self.text())?;
        plots::draw(dir, &self.0).map_err(io::Error::other)
    }

    fn text(&self) -> String {
        let mut text = String::from(HEAD);
        let parts: [(&str, Part); 4] = [
            ("learned", learned),
            ("gate", gate),
            ("servers", servers),
            ("replicas", replicas),
        ];
        for (name, write) in parts {
            if let Some(figures) = self.0.get(name) {
                write(&mut text, figures);
            }
        }
        text
    }
}

const HEAD: &str = "# The model in a closed loop

Written by `just model`, which also writes [model.json](model.json) with all figures. Everything is simulated in virtual
time with seeds, so it comes out the same everywhere: clients, the engine, the autopilot that learns its budgets, and
servers with iteration-level batching whose alpha, beta and gamma are known. The autopilot sees what the companion
sees: bytes of prompts, first and last times, tokens as counted by servers. Each request decodes at a pace of its own
(the noise below). Sizes are log-normal (deviation of the logarithm 0.5) around chat 512/128, long 8,000/150, code
2,000/400; mixed is 60 % chat, 10 % long, 30 % code. Servers in ms (alpha, beta, gamma): fast 5, 0.02, 0.0001; middle
8, 0.05, 0.0005; slow 20, 0.12, 0.0008.
";

fn number(of: &Value, digits: usize) -> String {
    of.as_f64()
        .map_or_else(|| "-".to_string(), |it| format!("{it:.digits$}"))
}

fn percent(of: &Value) -> String {
    of.as_f64()
        .map_or_else(|| "-".to_string(), |it| format!("{:.1} %", 100.0 * it))
}

fn word(of: &Value) -> &str {
    of.as_str().unwrap_or("-")
}

fn rows(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

/// Median and worst of one error.
fn error(of: &Value) -> String {
    let missing = of["missing"].as_u64().unwrap_or(0);
    let none = if missing > 0 {
        format!(", {missing} without")
    } else {
        String::new()
    };
    format!("{} ({}){none}", percent(&of["median"]), percent(&of["worst"]))
}

/// One line of a table.
fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn head(text: &mut String, cells: &[&str]) {
    let _ = writeln!(
        text,
        "\n| {} |\n|{}",
        cells.join(" | "),
        "---|".repeat(cells.len())
    );
}

fn learned(text: &mut String, of: &Value) {
    let _ = writeln!(
        text,
        "\n## Learned behind its own gate\n\n{} servers, offered {} of what they can do within targets inferred at k = 3, so \
         the gate sets the load it learns from. Errors of n* and lambda* against the closed forms at the true parameters, the \
         sizes of the mix and a bias of 1: median (worst) of {} seeds, at the first window that ends after so many requests an \
         endpoint. Exported n* is that of /metrics: at the \
         sizes that were served, which behind fair queueing aren't those that were offered (mixed), and with the bias. Kalman: the filter over windows, \
         in the same runs.",
        of["servers"], of["offered"], of["seeds"]
    );
    for (which, title) in [("early", "200"), ("late", "3,000")] {
        let _ = writeln!(text, "\nAfter {title} requests an endpoint:");
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
        for row in rows(&of["combinations"]) {
            let at = &row[which];
            line(
                text,
                &[
                    word(&row["hardware"]).into(),
                    word(&row["traffic"]).into(),
                    percent(&row["noise"]),
                    number(&row["n_star"], 1),
                    format!("{} of {}", at["converged"], at["runs"]),
                    error(&at["n_star"]),
                    error(&at["lambda_star"]),
                    error(&at["exported_n_star"]),
                    error(&at["kalman_n_star"]),
                    error(&at["kalman_lambda_star"]),
                ],
            );
        }
    }
    let _ = writeln!(
        text,
        "\n100,000 requests at 10 % noise: least and most of n*, as a part of the true one, from 3,000 requests an endpoint on.\n\n\
         ![n* over 100,000 requests](model-long.svg)"
    );
    head(
        text,
        &[
            "servers",
            "traffic",
            "requests",
            "windows converged",
            "n*",
            "Kalman n*",
        ],
    );
    for row in rows(&of["long"]) {
        let range = |of: &Value| format!("{} to {}", number(&of["least"], 3), number(&of["most"], 3));
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
    let _ = writeln!(
        text,
        "\nAlpha doubled after 3,000 requests (one middle server): requests until n* and lambda* were within 10 % of the new \
         truth and stayed there for ten windows; median (worst) of {} seeds.",
        of["seeds"]
    );
    head(text, &["traffic", "noise", "relearned after", "Kalman"]);
    for row in rows(&of["doubled"]) {
        let after = |of: &Value| {
            let never = of["never"].as_u64().unwrap_or(0);
            let none = if never > 0 {
                format!(", {never} never")
            } else {
                String::new()
            };
            format!("{} ({}){none}", number(&of["median"], 0), number(&of["worst"], 0))
        };
        line(
            text,
            &[
                word(&row["traffic"]).into(),
                percent(&row["noise"]),
                after(&row["reservoir"]),
                after(&row["kalman"]),
            ],
        );
    }
    let _ = writeln!(
        text,
        "\nConstant load (8 clients, all requests alike, nobody probes): part of the windows in each state."
    );
    head(
        text,
        &[
            "noise",
            "no_traffic",
            "learning",
            "unidentifiable",
            "converged",
            "windows with parameters",
        ],
    );
    for row in rows(&of["constant"]) {
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

fn gate(text: &mut String, of: &Value) {
    let _ = writeln!(
        text,
        "\n## `auto` against the best fixed watermark\n\n{} middle servers, target {} ms between tokens (and 10 s to the first \
         token, out of the way). Offered: of what they can do within the target, in every phase. Noise 5 %, 16 minutes after 8 to \
         settle and learn, mean of {} seeds. Goodput: output tokens per second of answers whose own mean time between tokens was \
         within the target. The best fixed watermark is the one with the most goodput of all that a search tried, coarse, then \
         fine; the best that keeps the target is the same among those with at most {} of their answers over it. With prompts: \
         prompt tokens count too, against the fixed one that is best at that.\n\n![goodput by watermark](model-gate.svg)",
        of["servers"],
        of["itl_slo_ms"],
        of["seeds"],
        percent(&of["keeps"])
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
    for row in rows(&of["scenes"]) {
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

fn servers(text: &mut String, of: &Value) {
    let _ = writeln!(
        text,
        "\n## Servers that differ\n\nTwo middle servers and one twice as slow (a variant of its own) behind one pool, chat, target \
         50 ms between tokens, 1.2 of what they can do is offered, noise 5 %, 15 minutes after 5. n* is the true one at the \
         target; budgets keep to 0.9 of it."
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
    for row in rows(of) {
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

fn replicas(text: &mut String, of: &Value) {
    let _ = writeln!(
        text,
        "\n## Replicas\n\n{} middle servers, chat, targets inferred: the load is a part of what they can do, ten minutes each; \
         windows of 10 s. Needed: with the backlog, the flow's full queue of 100 in its ttl of \
         30 s.\n\n![desired replicas](model-replicas.svg)",
        of["servers"]
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
    for row in rows(&of["phases"]) {
        let or_none = |of: &Value| {
            if of.is_null() {
                "-".to_string()
            } else {
                of.to_string()
            }
        };
        line(
            text,
            &[
                number(&row["load"], 1),
                row["needed"].to_string(),
                format!(
                    "{} ({} to {})",
                    or_none(&row["median"]),
                    or_none(&row["least"]),
                    or_none(&row["most"])
                ),
                format!("{} of {}", row["absent"], row["windows"]),
                or_none(&row["windows_until_needed"]),
                or_none(&row["last"]),
            ],
        );
    }
}
