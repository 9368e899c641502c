//! The tables of the pages: all figures on the benchmark page, a few in the README.

use std::fmt::Write;

use penstock_studies::figures::{grouped, median};
use serde_json::Value;

use crate::subject::Which;

/// A subject's name in a table.
fn title(which: Which, results: &Value) -> String {
    let title = match which {
        Which::Plain => "plain Envoy",
        Which::NoOp => "a wasm filter that does nothing",
        Which::ParseOnly => "one that reads the request (parse-only)",
        Which::Credits => "**Penstock**, by credit",
        Which::NativeCredits => "**Penstock**, native filter, by credit",
        Which::Penstock => "**Penstock**, nothing waits",
        Which::NativePenstock => "**Penstock**, native filter, nothing waits",
        Which::Queued => "**Penstock**, every request waits",
        Which::Replicas => "**Penstock**, nothing waits, with a standby and a lease in etcd",
        Which::Unary => "a unary gRPC call per request",
        Which::ExtProc => "ext_proc, a server that answers at once",
        Which::Picker => "**Penstock** as an endpoint picker, by credit",
        Which::EndpointPicker => {
            let program = results["programs"]["epp"].as_str().unwrap_or_default();
            return format!("an endpoint picker ({program})");
        }
    };
    title.to_owned()
}

/// One budget: the limit, the measured value, and whether it is met.
struct Budget {
    asked: &'static str,
    came_to: f64,
    unit: &'static str,
    met: bool,
}

/// The tables of docs/bench.
pub(crate) fn page(results: &Value) -> String {
    let mut text = format!(
        "{}, {} rounds; in brackets the least and the most.\n\n",
        results["machine"].as_str().unwrap_or_default(),
        results["rounds"]
    );
    text += "1 KB, 50 connections (wrk); a ratio is taken inside a round:\n\n";
    text += &table(
        results,
        &[
            ("requests/s", Cell::Spread("requests_per_s", 0)),
            ("of plain", Cell::Spread("requests_per_s_of_plain", 2)),
            ("of ext_proc", Cell::Median("requests_per_s_of_ext_proc", 2)),
            ("of the picker", Cell::Median("requests_per_s_of_epp", 2)),
            ("p50 us", Cell::Median("p50_us", 0)),
            ("p99 us", Cell::Median("p99_us", 0)),
            ("Envoy CPU us", Cell::Spread("envoy_cpu_us", 1)),
            ("over parse-only us", Cell::Median("envoy_cpu_us_over_parse_only", 1)),
            ("beside Envoy us", Cell::Spread("side_cpu_us", 1)),
            ("all CPU, of plain", Cell::Spread("cpu_us_of_plain", 2)),
        ],
    );
    let percent = |name: &str, key: &str| median(&results["subjects"][name][key]);
    let _ = write!(
        text,
        "\nThe CPU is per request; beside Envoy is the companion, or the server that is asked in its place. Of Penstock's \
         requests {:.1} % went by credit where they should, {:.1} % waited where none should, {:.1} % where every one should.\n\n",
        percent("penstock-credits", "leased_percent"),
        percent("penstock", "waited_percent"),
        percent("penstock-queued", "waited_percent"),
    );
    let rate = grouped(results["open_rate"].as_f64().unwrap_or_default());
    let _ = write!(
        text,
        "1 KB: one connection (wrk), and in an open loop at {rate} requests/s, each timed from when it was due (oha):\n\n"
    );
    text += &table(
        results,
        &[
            ("p50 us at 1", Cell::Spread("p50_us_at_1", 0)),
            ("p99 us at 1", Cell::Spread("p99_us_at_1", 0)),
            ("p50 over plain us", Cell::Spread("p50_us_at_1_over_plain", 0)),
            ("p50 of the picker's", Cell::Median("p50_us_at_1_of_epp", 2)),
            ("open loop p50 us", Cell::Spread("open_p50_us", 0)),
            ("open loop p99 us", Cell::Spread("open_p99_us", 0)),
        ],
    );
    text += "\n220 KB, 50 connections (wrk), and streams: 50 of them, 50 events/s each:\n\n";
    text += &table(
        results,
        &[
            ("220 KB requests/s", Cell::Spread("requests_per_s_220kb", 0)),
            ("of plain", Cell::Median("requests_per_s_220kb_of_plain", 2)),
            ("of ext_proc", Cell::Median("requests_per_s_220kb_of_ext_proc", 2)),
            ("of the picker", Cell::Median("requests_per_s_220kb_of_epp", 2)),
            ("p50 us", Cell::Median("p50_us_220kb", 0)),
            ("p99 us", Cell::Median("p99_us_220kb", 0)),
            ("Envoy CPU us", Cell::Spread("envoy_cpu_us_220kb", 0)),
            ("beside us", Cell::Median("side_cpu_us_220kb", 0)),
            ("Envoy CPU us an event", Cell::Spread("envoy_cpu_us_per_event", 2)),
            ("over plain us", Cell::Median("envoy_cpu_us_per_event_over_plain", 2)),
        ],
    );
    text += "\nEnvoy's instructions, in thousands, counted by callgrind at one connection (`by credit`: the part of the requests):\n\n";
    text += &instructions(results);
    text += "\n";
    text += &memory(results);
    text += "\n";
    text += &budgets_table(results);
    text += "\n![requests per second and CPU per request](gateway.svg)\n";
    text
}

/// The README's table.
pub(crate) fn short(results: &Value) -> String {
    let text = table(
        results,
        &[
            ("requests/s", Cell::Median("requests_per_s", 0)),
            ("of plain", Cell::Median("requests_per_s_of_plain", 2)),
            ("of ext_proc", Cell::Median("requests_per_s_of_ext_proc", 2)),
            ("p50 us at 1 connection", Cell::Median("p50_us_at_1", 0)),
            ("Envoy CPU us a request", Cell::Median("envoy_cpu_us", 1)),
            ("beside Envoy us", Cell::Median("side_cpu_us", 1)),
            ("220 KB requests/s", Cell::Median("requests_per_s_220kb", 0)),
        ],
    );
    let machine = results["machine"].as_str().unwrap_or_default();
    format!("{text}\n{machine}, one Envoy worker on one core, 50 connections, bodies of 1 KB.\n")
}

/// The subjects of a table: all of this repository, and those of other projects that were measured.
pub(crate) fn measured(results: &Value) -> Vec<(&'static str, Which)> {
    let all = Which::ALL.into_iter();
    all.filter(|(name, which)| !which.is_peer() || !results["subjects"][name].is_null()).collect()
}

/// How a figure is shown: the number of decimals.
#[derive(Clone, Copy)]
enum Cell {
    Median(&'static str, usize),
    Spread(&'static str, usize),
}

fn table(results: &Value, columns: &[(&str, Cell)]) -> String {
    let subjects = measured(results);
    let columns: Vec<_> = columns
        .iter()
        .filter(|(_, cell)| {
            let (Cell::Median(key, _) | Cell::Spread(key, _)) = *cell;
            subjects.iter().any(|(name, _)| !results["subjects"][name][key].is_null())
        })
        .collect();
    let mut text = String::from("| |");
    for (name, _) in &columns {
        let _ = write!(text, " {name} |");
    }
    text += "\n|---|";
    text += &"---|".repeat(columns.len());
    text += "\n";
    for (name, which) in subjects {
        let _ = write!(text, "| {} |", title(which, results));
        for (_, cell) in &columns {
            let figures = &results["subjects"][name];
            let (Cell::Median(key, digits) | Cell::Spread(key, digits)) = *cell;
            let figure = &figures[key];
            let own = |key: &str| number(figure[key].as_f64().unwrap_or_default(), digits);
            let _ = match cell {
                _ if figure.is_null() || is_trivial(key, which) => write!(text, " |"),
                Cell::Median(..) => write!(text, " {} |", own("median")),
                Cell::Spread(..) => write!(text, " {} ({} to {}) |", own("median"), own("min"), own("max")),
            };
        }
        text += "\n";
    }
    text
}

/// Subjects without a process beside Envoy.
fn is_trivial(key: &str, which: Which) -> bool {
    let alone = match which {
        Which::Plain | Which::NoOp | Which::ParseOnly => true,
        Which::Credits
        | Which::NativeCredits
        | Which::Penstock
        | Which::NativePenstock
        | Which::Queued
        | Which::Replicas
        | Which::Unary
        | Which::ExtProc
        | Which::Picker
        | Which::EndpointPicker => false,
    };
    alone && key.starts_with("side_cpu")
}

fn number(value: f64, digits: usize) -> String {
    if digits == 0 { grouped(value) } else { format!("{value:.digits$}") }
}

fn instructions(results: &Value) -> String {
    let mut text = String::from("| |");
    let columns = [("1kb", "1 KB"), ("220kb", "220 KB"), ("event", "an event of a stream")];
    for (_, title) in columns {
        let _ = write!(text, " {title} | over plain |");
    }
    text += " by credit |\n|---|---|---|---|---|---|---|---|\n";
    let all = &results["instructions"];
    let thousands = |value: f64| format!("{:.1}", value / 1e3);
    for (name, which) in Which::ALL.into_iter().filter(|(name, _)| !all[name].is_null()) {
        let _ = write!(text, "| {} |", title(which, results));
        for (key, _) in columns {
            let own = all[name][key].as_f64().unwrap_or_default();
            let plain = all[Which::Plain.name()][key].as_f64().filter(|_| which != Which::Plain);
            let over = plain.map_or_else(String::new, |plain| thousands(own - plain));
            let _ = write!(text, " {} | {over} |", thousands(own));
        }
        let credit = all[name]["by_credit"].as_f64().map(|part| format!("{part:.2}"));
        let _ = writeln!(text, " {} |", credit.unwrap_or_default());
    }
    text
}

fn memory(results: &Value) -> String {
    let mut text = String::from(
        "Memory of 5,000 paused requests, and after they have ended: resident memory. Envoy's allocator keeps its pages, so \
         the memory that it has given out is beside it.\n\n\
         | filter, body | Envoy, bytes each | of which the connection | companion, bytes each | Envoy MiB: before, paused, ended | \
         allocated in it | companion MiB |\n|---|---|---|---|---|---|---|\n",
    );
    for row in results["paused"].as_array().into_iter().flatten() {
        let whole = |key: &str| grouped(row[key].as_f64().unwrap_or_default());
        let three = |key: &str| {
            let figure = &row[key];
            format!("{}, {}, {}", figure["before"], figure["paused"], figure["gone"])
        };
        let _ = writeln!(
            text,
            "| {}, {} | {} | {} | {} | {} | {} | {} |",
            row["filter"].as_str().unwrap_or_default(),
            whole("body_bytes"),
            whole("envoy_bytes_each"),
            whole("envoy_bytes_each_of_the_connection"),
            whole("companion_bytes_each"),
            three("envoy_mib"),
            three("envoy_heap_mib"),
            three("companion_mib"),
        );
    }
    let (waiting, cycles) = (&results["companion"]["waiting"], &results["companion"]["cycles"]);
    let _ = write!(
        text,
        "\nThe companion alone, with a scripted session: {} bytes per waiting request at {} of {} \
         flows (resident MiB before, then, and after they have ended: {}); {} us of CPU per request at {} requests/s. Idle, \
         a whole gateway takes {} % of a core in the companion and {} % in Envoy.\n",
        grouped(waiting["bytes_each"].as_f64().unwrap_or_default()),
        grouped(waiting["waiting"].as_f64().unwrap_or_default()),
        grouped(waiting["flows"].as_f64().unwrap_or_default()),
        waiting["mib_before_waiting_gone"]
            .as_array()
            .map(|all| all.iter().map(Value::to_string).collect::<Vec<_>>().join(", "))
            .unwrap_or_default(),
        cycles["cpu_us_per_request"],
        grouped(cycles["requests_per_s"].as_f64().unwrap_or_default()),
        results["idle_cpu_percent"]["companion"],
        results["idle_cpu_percent"]["envoy"],
    );
    text
}

fn budgets_table(results: &Value) -> String {
    let mut text = String::from("| budget | came to | |\n|---|---|---|\n");
    for budget in budgets(results) {
        let verdict = if budget.met { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {} | {:.2} {} | {verdict} |", budget.asked, budget.came_to, budget.unit);
    }
    text
}

/// The figure of a subject that a budget limits.
struct Limit {
    /// The budget, in words.
    asked: &'static str,
    subject: Which,
    figure: &'static str,
    unit: &'static str,
    limit: Bound,
}

/// The value that a figure may have.
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

const LIMITS: [Limit; 11] = [
    limit(
        "by credit: requests/s of plain's, at least 0.6 times",
        Which::Credits,
        "requests_per_s_of_plain",
        "times",
        Bound::AtLeast(0.6),
    ),
    limit(
        "by credit: CPU of all processes of plain's, at most 1.8 times",
        Which::Credits,
        "cpu_us_of_plain",
        "times",
        Bound::AtMost(1.8),
    ),
    limit(
        "by credit: p50 over plain at 1 connection, at most 60 us",
        Which::Credits,
        "p50_us_at_1_over_plain",
        "us",
        Bound::AtMost(60.0),
    ),
    limit(
        "by credit: the companion's CPU a request, at most 4 us",
        Which::Credits,
        "side_cpu_us",
        "us",
        Bound::AtMost(4.0),
    ),
    limit(
        "asking: requests/s of plain's, at least 0.5 times",
        Which::Penstock,
        "requests_per_s_of_plain",
        "times",
        Bound::AtLeast(0.5),
    ),
    limit(
        "asking: CPU of all processes of plain's, at most 2.2 times",
        Which::Penstock,
        "cpu_us_of_plain",
        "times",
        Bound::AtMost(2.2),
    ),
    limit(
        "asking: p50 over plain at 1 connection, at most 180 us",
        Which::Penstock,
        "p50_us_at_1_over_plain",
        "us",
        Bound::AtMost(180.0),
    ),
    limit(
        "asking: the companion's CPU a request, at most 10 us",
        Which::Penstock,
        "side_cpu_us",
        "us",
        Bound::AtMost(10.0),
    ),
    limit(
        "220 KB: requests/s of plain's, at least 0.55 times",
        Which::Penstock,
        "requests_per_s_220kb_of_plain",
        "times",
        Bound::AtLeast(0.55),
    ),
    limit(
        "requests/s of ext_proc's, at least 1.5 times",
        Which::Penstock,
        "requests_per_s_of_ext_proc",
        "times",
        Bound::AtLeast(1.5),
    ),
    limit(
        "an event of a stream over plain, at most 5 us",
        Which::Penstock,
        "envoy_cpu_us_per_event_over_plain",
        "us",
        Bound::AtMost(5.0),
    ),
];

const fn limit(
    asked: &'static str,
    subject: Which,
    figure: &'static str,
    unit: &'static str,
    limit: Bound,
) -> Limit {
    Limit { asked, subject, figure, unit, limit }
}

fn budgets(results: &Value) -> Vec<Budget> {
    let of_subjects = LIMITS.iter().map(|limit| {
        let came_to = median(&results["subjects"][limit.subject.name()][limit.figure]);
        Budget {
            asked: limit.asked,
            came_to,
            unit: limit.unit,
            met: match limit.limit {
                Bound::AtLeast(least) => came_to >= least,
                Bound::AtMost(most) => came_to <= most,
            },
        }
    });
    let at_most = |asked, came_to: &Value, most: f64, unit| {
        let came_to = came_to.as_f64().unwrap_or_default();
        Budget { asked, came_to, unit, met: came_to <= most }
    };
    let others = [
        at_most(
            "bytes per waiting request at 100,000, below 1,024",
            &results["companion"]["waiting"]["bytes_each"],
            1_024.0,
            "bytes",
        ),
        at_most(
            "companion's CPU when idle, below 0.1 %",
            &results["idle_cpu_percent"]["companion"],
            0.1,
            "%",
        ),
    ];
    of_subjects.chain(others).collect()
}
