//! The command as a user runs it: arguments in, text and files out.

use std::path::Path;

use clap::Parser;
use penstock_config::Environment;
use penstock_errors::Failure as _;
use serde_json::Value;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// Files in a folder of their own, and the command run among them.
struct Bench {
    folder: tempfile::TempDir,
}

const FAIR: &str = "pools:\n- name: chat\n  endpoints: {static: ['127.0.0.1:1', '127.0.0.1:2']}\n  \
                    stock: {watermark_per_backend: 32}\n";
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().expect("a folder") };
        bench.write("fair.yaml", FAIR);
        bench.write("fifo.yaml", &format!("{FAIR}  arbitration: {{flows: {{discipline: fifo}}}}\n"));
        let rows = (0..600).map(|index| {
            let (secs, tokens) = (index / 10, 100 + index * 37 % 900);
            format!(
                "2024-05-12 00:{:02}:{:02}.{}+00:00,{tokens},{}\n",
                secs / 60,
                secs % 60,
                index % 10,
                tokens / 4
            )
        });
        bench.write("trace.csv", &(AZURE.to_owned() + &rows.collect::<String>()));
        bench
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("write a file");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).expect("read a file")
    }

    /// Runs the command. `@name` is a file of the folder.
    fn run(&self, line: &str) -> Result<String, Error> {
        let words = line.split_whitespace().map(|word| match word.strip_prefix('@') {
            Some(name) => self.path(name),
            None => word.to_owned(),
        });
        let command = Command::try_parse_from(std::iter::once("simulate".to_owned()).chain(words));
        run(&command.expect("valid arguments").args, &Environment::default())
    }

    fn json(&self, line: &str) -> Value {
        let printed = self.run(&format!("{line} --json")).expect("a result");
        serde_json::from_str(&printed).expect("JSON")
    }

    /// The exit code and message of a command that fails.
    fn failure(&self, line: &str) -> (u8, String) {
        let error = self.run(line).expect_err(line);
        (error.exit_code(), error.to_string())
    }
}

fn usage(line: &str) -> String {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    let error = Command::try_parse_from(words).expect_err(line);
    assert_eq!(error.exit_code(), 2, "{line}");
    error.to_string()
}

#[test]
fn json_has_the_documented_fields_and_every_request() {
    let bench = Bench::new();
    let document = bench.json("--config @fair.yaml --trace @trace.csv --tenants 3");
    let run = &document["runs"][0];
    assert_eq!(run["policy"], bench.path("fair.yaml"));
    assert_eq!((&run["servers"], &run["requests"]), (&2.into(), &600.into()));
    let count = |value: &Value| value.as_u64().expect("a number");
    let ended = ["served", "refused", "unfinished"].map(|field| count(&run[field]));
    assert_eq!(ended.iter().sum::<u64>(), 600);
    for field in ["goodput_requests_per_s", "goodput_tokens_per_s", "utilisation", "jain"] {
        assert!(run[field].is_f64(), "{field}: {run}");
    }
    for field in ["ttft_ms", "queue_ms"] {
        assert!(run[field]["p50"].is_f64() && run[field]["p99"].is_f64(), "{field}: {run}");
    }
    let tenants = run["tenants"].as_array().expect("a list");
    let names: Vec<&str> = tenants.iter().map(|t| t["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["t1", "t2", "t3"], "the heaviest first");
    assert_eq!(tenants.iter().map(|t| count(&t["served"]) + count(&t["refused"])).sum::<u64>(), 600);
    let shares: f64 = tenants.iter().filter_map(|t| t["share"].as_f64()).sum();
    assert!((shares - 1.0).abs() < 1e-5);
    assert!(tenants[0]["weight"].is_f64() && tenants[0]["ttft_ms"]["p99"].is_f64());
}

#[test]
fn the_same_seed_gives_the_same_bytes_in_every_form() {
    let bench = Bench::new();
    let line = |out: &str, seed: u64| {
        format!(
            "--config @fair.yaml --compare @fifo.yaml --scenario greedy --for 1m --seed {seed} --out @{out}"
        )
    };
    let first = bench.run(&line("a", 3)).expect("a result");
    let again = bench.run(&line("b", 3)).expect("a result");
    assert_eq!(first.replace(&bench.path("a"), ""), again.replace(&bench.path("b"), ""));
    for file in ["report.html", "results.json"] {
        assert_eq!(bench.read(&format!("a/{file}")), bench.read(&format!("b/{file}")), "{file}");
    }
    bench.run(&line("c", 4)).expect("a result");
    assert_ne!(bench.read("a/results.json"), bench.read("c/results.json"));
}

#[test]
fn every_policy_runs_with_every_number_of_servers_and_the_fewest_that_are_enough_are_named() {
    let bench = Bench::new();
    let line = "--config @fair.yaml --compare @fifo.yaml --trace @trace.csv --servers 1..3 --scale 4 --slo-ttft 2000";
    let document = bench.json(line);
    let runs = document["runs"].as_array().expect("a list");
    let servers: Vec<u64> = runs.iter().filter_map(|run| run["servers"].as_u64()).collect();
    assert_eq!(servers, [1, 2, 3, 1, 2, 3]);
    let within = |run: &Value| run["within_targets"].as_f64().expect("a number");
    assert!(within(&runs[0]) < 0.9 && within(&runs[2]) > within(&runs[0]), "{runs:?}");
    let enough = document["enough"][0]["servers"].as_u64();
    let fewest = runs[..3].iter().find(|run| within(run) >= 0.99);
    assert_eq!(enough, fewest.and_then(|run| run["servers"].as_u64()));
    let table = bench.run(line).expect("a result");
    assert!(table.contains("enough"), "{table}");
}

#[test]
fn scale_multiplies_the_rate_and_for_ends_the_arrivals() {
    let bench = Bench::new();
    let input =
        |more: &str| bench.json(&format!("--config @fair.yaml --trace @trace.csv {more}"))["input"].clone();
    let secs = |input: &Value| input["arrivals_s"].as_f64().expect("a number");
    assert_eq!(secs(&input("")), 59.9);
    assert_eq!(secs(&input("--scale 2")), 29.95);
    let cut = input("--scale 2 --for 10s");
    assert_eq!((&cut["requests"], secs(&cut)), (&200.into(), 9.95));
}

#[test]
fn the_load_of_a_scenario_follows_the_listed_servers_and_not_the_flag() {
    let bench = Bench::new();
    let requests = |more: &str| {
        let document = bench.json(&format!("--config @fair.yaml --scenario steady --for 1m {more}"));
        document["input"]["requests"].as_u64().expect("a number")
    };
    assert_eq!(requests(""), requests("--servers 5"));
    let (once, twice) = (requests("") as f64, requests("--scale 2") as f64);
    assert!((1.8..2.2).contains(&(twice / once)), "{once} {twice}");
}

#[test]
fn tenants_get_the_weights_and_limits_of_the_configuration() {
    let bench = Bench::new();
    let weighted = format!(
        "identity: {{max_priority: {{tenants: {{t1: sheddable}}}}}}\n{FAIR}  arbitration: {{flows: {{weights: {{t2: 3}}}}}}\n"
    );
    bench.write("weighted.yaml", &weighted);
    let document = bench.json("--config @weighted.yaml --scenario steady --scale 2 --for 2m");
    let tenants = document["runs"][0]["tenants"].as_array().expect("a list");
    let find = |name: &str| tenants.iter().find(|t| t["name"] == name).expect("the tenant");
    assert_eq!((&find("t2")["weight"], &find("t3")["weight"]), (&3.0.into(), &1.0.into()));
    let served = |name: &str| find(name)["served"].as_u64().expect("a number");
    assert!(served("t1") < served("t3") && served("t3") < served("t2"), "{tenants:?}");
}

#[test]
fn the_report_loads_nothing_and_escapes_what_comes_from_outside() {
    let bench = Bench::new();
    let name = "a<script>alert(1)</script>&\"'.yaml";
    // The slash of `</script>` makes the first part a folder.
    let folder = bench.folder.path().join("a<script>alert(1)<");
    std::fs::create_dir(&folder).expect("a folder");
    bench.write(name, FAIR);
    bench
        .run(&format!(
            "--config @{name} --compare @fifo.yaml --trace @trace.csv --tenants 2 --servers 1..2 --out @out"
        ))
        .expect("a result");
    let html = bench.read("out/report.html");
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;.yaml"));
    for part in ["<script", "http://", "https://", "src=", "href=", "url(", "@import", "NaN", "inf\""] {
        assert!(!html.contains(part), "{part}");
    }
    let charts = html.matches("<figure>").count();
    assert_eq!(charts, 10, "4 by servers, 4 over time, 2 by tenant");
    assert_eq!(html.matches("the same data as a table").count(), charts);
    assert!(html.contains("prefers-color-scheme: dark"));
}

#[test]
fn errors_of_a_trace_name_the_file_and_the_line() {
    let bench = Bench::new();
    let line = "--config @fair.yaml --trace @bad.csv";
    for (text, place, word) in [
        ("", "", "no request"),
        (AZURE, "", "no request"),
        ("a,b\n1,2\n", ":1: ", "format"),
        ("TIMESTAMP,ContextTokens\n", ":1: ", "GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nNaN,1,1\n", ":2: ", "`NaN`"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,1e30,1\n", ":2: ", "`1e30`"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,99999999,1\n", ":2: ", "10000000"),
        ("Timestamp,Request tokens,Response tokens\n1,1,1\n1e9,1,1\n", "", "31 days"),
        ("{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}\n", ":1: ", "timestamp"),
    ] {
        bench.write("bad.csv", text);
        let (code, message) = bench.failure(line);
        let start = format!("{}{place}", bench.path("bad.csv"));
        assert!(
            code == 2 && message.starts_with(&start) && message.contains(word),
            "{text}: {code} {message}"
        );
    }
    let (code, message) = bench.failure("--config @fair.yaml --trace @missing.csv");
    assert!(code == 2 && message.contains("missing.csv"), "{message}");
}

#[test]
fn rows_that_are_not_in_order_are_sorted() {
    let bench = Bench::new();
    let mut rows: Vec<String> = bench.read("trace.csv").lines().map(ToOwned::to_owned).collect();
    rows[1..].reverse();
    bench.write("reversed.csv", &rows.join("\n"));
    let runs = |trace: &str| bench.json(&format!("--config @fair.yaml --trace {trace}"))["runs"].clone();
    assert_eq!(runs("@trace.csv"), runs("@reversed.csv"));
}

#[test]
fn a_configuration_without_listed_endpoints_needs_a_number_of_servers() {
    let bench = Bench::new();
    let pool = "pools:\n- name: chat\n  endpoints: {dns: {name: vllm, port: 8000}}\n";
    bench.write("dns.yaml", pool);
    let (code, message) = bench.failure("--config @dns.yaml --trace @trace.csv");
    assert!(code == 2 && message.contains("--servers N"), "{message}");
    let document = bench.json("--config @dns.yaml --trace @trace.csv --servers 3");
    assert_eq!(document["runs"][0]["servers"], 3);
    assert!(
        bench.json("--config @dns.yaml --scenario steady --for 10s --servers 2")["runs"][0]["served"]
            .is_u64()
    );
}

#[test]
fn bad_arguments_and_configurations_are_usage_errors() {
    let bench = Bench::new();
    bench.write("bad.yaml", "pools: [{name: chat, nonsense: 1}]\n");
    for (line, word) in [
        ("--config @bad.yaml --scenario steady", "nonsense"),
        ("--config @missing.yaml --scenario steady", "missing.yaml"),
        ("--config @fair.yaml --scenario steady --alpha -1", "alpha"),
        ("--config @fair.yaml --scenario steady --alpha nan", "alpha"),
        ("--config @fair.yaml --scenario steady --beta 1e300", "beta"),
        ("--config @fair.yaml --scenario steady --max-num-seqs 0", "max-num-seqs"),
        ("--config @fair.yaml --scenario steady --kv-tokens 0", "kv-tokens"),
        ("--config @fair.yaml --scenario steady --servers 1..1000", "128"),
        ("--config @fair.yaml --scenario steady --slo-ttft 0.001", "--slo-ttft"),
        ("--config @fair.yaml --scenario steady --scale 1000 --for 31d", "2000000"),
        ("--config @fair.yaml --trace @trace.csv --scale 0.001 --for 31d --servers 1..200", "128"),
    ] {
        let (code, message) = bench.failure(line);
        assert!(code == 2 && message.contains(word), "{line}: {code} {message}");
    }
    for (line, word) in [
        ("--config f", "--trace"),
        ("--trace t", "--config"),
        ("--config f --trace t --scenario steady", "cannot be used"),
        ("--config f --scenario storm", "greedy"),
        ("--config f --scenario steady --trace-format azure", "cannot be used"),
        ("--config f --trace t --trace-format csv", "mooncake"),
        ("--config f --scenario steady --servers 0", "1 to 1000"),
        ("--config f --scenario steady --servers 8..2", "2..8"),
        ("--config f --scenario steady --servers -1", "1 to 1000"),
        ("--config f --scenario steady --scale nan", "0.001"),
        ("--config f --scenario steady --tenants 0", "10000"),
        ("--config f --scenario steady --slo-ttft -1", "0 to"),
        ("--config f --scenario steady --for 0s", "above 0"),
    ] {
        let message = usage(line);
        assert!(message.contains(word), "{line}: {message}");
    }
}

#[test]
fn an_output_directory_that_cannot_be_made_fails_before_the_run() {
    let bench = Bench::new();
    let (code, message) = bench.failure("--config @fair.yaml --trace @missing.csv --out @fair.yaml/out");
    assert!(code == 1 && message.contains("fair.yaml/out"), "{message}");
    assert!(!Path::new(&bench.path("fair.yaml/out")).exists());
}
