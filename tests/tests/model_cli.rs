//! `penstock model` as its user meets it: the reference cases, recordings with known parameters, and what it says to
//! input that is wrong.

use std::path::PathBuf;
use std::process::{Command, Output};

use penstock_tests::binary;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A run of the binary in a folder of its own.
struct Ran {
    output: Output,
    _folder: TempDir,
}

impl Ran {
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The lines of one that succeeded, as JSON.
    fn answers(&self) -> Vec<Value> {
        assert!(self.output.status.success(), "{}", self.said());
        let text = std::str::from_utf8(&self.output.stdout).expect("answers are UTF-8");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        text.lines().map(read).collect()
    }

    fn answer(&self) -> Value {
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// What one that was refused as bad usage said.
    fn refused(&self) -> String {
        assert_eq!(self.output.status.code(), Some(2), "{}", self.said());
        assert!(!self.said().contains("panicked"), "{}", self.said());
        self.said()
    }
}

/// Runs `penstock model`, with these files beside it.
fn model(arguments: &str, files: &[(&str, &str)]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("write a file");
    }
    let output = Command::new(binary::penstock())
        .arg("model")
        .args(arguments.split_whitespace())
        .current_dir(folder.path())
        .output()
        .expect("penstock starts");
    Ran {
        output,
        _folder: folder,
    }
}

fn fit(content: &str, flags: &str) -> Ran {
    model(&format!("fit obs.jsonl {flags}"), &[("obs.jsonl", content)])
}

fn analyze(snapshot: &Value) -> Ran {
    model("analyze s.json", &[("s.json", &snapshot.to_string())])
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Both null, or numbers that are as near as that.
fn same(got: &Value, expected: &Value, tolerance: f64, what: &str) {
    if expected.is_null() {
        assert!(got.is_null(), "{what}: {got}");
        return;
    }
    let (got, expected) = (number(got), number(expected));
    let error = (got - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1e-9),
        "{what}: {got}, not {expected}"
    );
}

fn vectors() -> Value {
    let path: PathBuf = binary::workspace().join("companion/model/tests/data/model.json");
    serde_json::from_slice(&std::fs::read(path).expect("the vectors")).expect("JSON")
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().expect("a list")
}

/// The flags of a server and its requests.
fn case(parameters: &Value, input: &Value, output: &Value) -> String {
    let of = |at: usize| number(&parameters[at]);
    format!(
        "--alpha {} --beta {} --gamma {} --input {input} --output {output}",
        of(0),
        of(1),
        of(2)
    )
}

const CHAT: &str = "--alpha 8 --beta .05 --gamma .0005 --input 512 --output 128";

#[test]
fn solve_gives_the_closed_forms() {
    for vector in list(&vectors(), "closed_form") {
        let given = &vector["in"];
        let parameters = json!([given[3], given[4], given[5]]);
        let flags = case(&parameters, &given[1], &given[2]);
        let solved = model(&format!("solve {flags} --rate {}", given[0]), &[]).answer();
        for (key, expected) in [
            ("delta", "delta"),
            ("rho", "rho"),
            ("t_iter", "T"),
            ("ttft", "ttft"),
            ("itl", "itl"),
            ("n", "n"),
        ] {
            same(
                &solved[key],
                &vector[expected],
                1e-6,
                &format!("{}: {key}", vector["id"]),
            );
        }
        assert_eq!(solved["stable"], !vector["T"].is_null());
        assert_eq!(solved.as_object().expect("an object").len(), 7);
    }
}

#[test]
fn size_gives_what_a_server_takes() {
    for vector in list(&vectors(), "lambda_star") {
        let mut flags = case(&vector["abg"], &vector["i"], &vector["o"]);
        flags += &format!(
            " --slo-ttft {} --slo-itl {}",
            vector["slo_ttft"], vector["slo_itl"]
        );
        if let Some(batch) = vector["max_batch"].as_u64() {
            flags += &format!(" --max-batch {batch}");
        }
        let sized = model(&format!("size {flags}"), &[]).answer();
        for key in ["lambda_star", "n_star", "rho"] {
            same(
                &sized[key],
                &vector[key],
                1e-4,
                &format!("{}: {key}", vector["id"]),
            );
        }
        assert_eq!(sized["binding"], vector["binding"], "{}", vector["id"]);
        assert_eq!(sized["feasible"], vector["feasible"], "{}", vector["id"]);
        assert_eq!(sized["required_replicas"], Value::Null);
        assert!(sized.get("slo_ttft").is_none());
    }
    for vector in list(&vectors(), "inferred_slo") {
        let flags = case(&vector["abg"], &vector["i"], &vector["o"]);
        let sized = model(&format!("size {flags} --slo-multiplier {}", vector["k"]), &[]).answer();
        for key in ["slo_ttft", "slo_itl", "lambda_star", "rho"] {
            same(
                &sized[key],
                &vector[key],
                1e-4,
                &format!("k = {}: {key}", vector["k"]),
            );
        }
    }
}

#[test]
fn size_knows_what_isnt_limited_and_what_isnt_possible() {
    let of = |flags: &str| model(&format!("size {CHAT} {flags}"), &[]).answer();
    let free = of("--rate 5");
    assert_eq!(
        (&free["n_star"], &free["binding"]),
        (&Value::Null, &json!("none"))
    );
    same(
        &free["lambda_star"],
        &json!(1000.0 / (129.0 * 0.536_062_015_5)),
        1e-6,
        "saturated",
    );
    let absent = of("--slo-ttft 0 --slo-itl 0");
    assert_eq!(absent, free, "a target of 0 is none");
    let batch = of("--max-batch 10");
    assert_eq!(
        (number(&batch["n_star"]), &batch["binding"]),
        (10.0, &json!("max_batch"))
    );
    let never = of("--slo-itl 8 --total-rate 30");
    assert_eq!(
        never,
        json!({"lambda_star": 0.0, "n_star": 0.0, "rho": 0.0, "binding": "itl", "feasible": false,
               "required_replicas": null})
    );
    let replicas =
        |rate: &str| of(&format!("--slo-multiplier 0 --total-rate {rate}"))["required_replicas"].clone();
    // lambda* is 9.64.
    assert_eq!(
        (replicas("9.6"), replicas("9.7"), replicas("0")),
        (json!(1), json!(2), Value::Null)
    );
    let default = of("--slo-multiplier 0");
    assert_eq!(default, of("--slo-multiplier 3"), "0 is the default");
    let explicit = of("--slo-multiplier 3 --slo-ttft 500 --slo-itl 50");
    assert_eq!(
        (number(&explicit["slo_ttft"]), number(&explicit["slo_itl"])),
        (500.0, 50.0)
    );
    let weightless = "size --alpha 8 --beta 0 --gamma 0 --input 1 --output 1 --slo-itl 50";
    assert_eq!(
        model(weightless, &[]).answer()["lambda_star"],
        Value::Null,
        "without end"
    );
}

#[test]
fn numbers_that_are_none_are_refused() {
    let bad = [
        ("solve", CHAT, "--rate"),
        ("solve", CHAT, "--rate -1"),
        ("solve", CHAT, "--rate nan"),
        ("solve", CHAT, "--rate inf"),
        ("solve", CHAT, "--rate 1e31"),
        ("solve", CHAT, "--rate 5 --rate 6"),
        ("solve", CHAT, "--rate five"),
        ("solve", CHAT, ""),
        (
            "solve",
            "--alpha 0 --beta 1 --gamma 1 --input 1 --output 1",
            "--rate 1",
        ),
        (
            "solve",
            "--alpha 8 --beta -1 --gamma 1 --input 1 --output 1",
            "--rate 1",
        ),
        ("size", CHAT, "--slo-ttft -1"),
        ("size", CHAT, "--slo-multiplier 1"),
        ("size", CHAT, "--slo-multiplier 0.5"),
        ("size", CHAT, "--slo-multiplier -3"),
        ("size", CHAT, "--slo-multiplier 3 --slo-ttft 500"),
        ("size", CHAT, "--max-batch 0"),
        ("size", CHAT, "--max-batch 1.5"),
        ("size", CHAT, "--total-rate -1"),
        ("guess", CHAT, ""),
        ("fit", "nowhere.jsonl", ""),
        ("fit", ".", ""),
        ("analyze", "nowhere.json", ""),
    ];
    for (command, case, flags) in bad {
        let ran = model(&format!("{command} {case} {flags}"), &[]);
        let said = ran.refused();
        assert!(
            !said.is_empty() && ran.output.stdout.is_empty(),
            "{command} {flags}: {said}"
        );
    }
    let most = "solve --alpha 1e30 --beta 1e30 --gamma 1e30 --input 1e30 --output 1e30 --rate 1e30";
    assert_eq!(model(most, &[]).answer()["stable"], false);
}

/// The sequence of the vectors' generator: windows of a server of (8, .05, .0005).
fn windows(count: usize, change: impl Fn(usize, &mut [f64; 5])) -> String {
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

fn window(rho: f64, i: f64, o: f64) -> [f64; 5] {
    let (alpha, beta, gamma) = (8.0, 0.05, 0.0005);
    let delta = beta * (i + o) / (o + 1.0) + gamma * (i + o / 2.0);
    let iteration = alpha / (1.0 - rho);
    let itl = iteration + beta + gamma * (i + f64::midpoint(o, 1.0));
    [
        rho * 1000.0 / ((o + 1.0) * delta),
        i,
        o,
        iteration + (beta + gamma) * i,
        itl,
    ]
}

/// The parameters of a summary or an answer are these.
fn learned(known: &Value, tolerance: f64) {
    for (key, truth) in [("alpha", 8.0), ("beta", 0.05), ("gamma", 0.0005)] {
        same(
            &known[key],
            &json!(truth),
            tolerance,
            &format!("{key} of {known}"),
        );
    }
}

#[test]
fn fit_learns_from_windows() {
    let recording = windows(60, |_, _| {});
    for flags in ["", "--no-bootstrap", "--init 12,.1,.001"] {
        let answers = fit(&recording, flags).answers();
        assert_eq!(answers.len(), 61);
        let keys: Vec<&String> = answers[7].as_object().expect("an object").keys().collect();
        let mut expected = ["alpha", "beta", "gamma", "state", "nis", "accepted", "condition"];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        let summary = &answers[60]["summary"];
        assert_eq!(summary["state"], "converged", "{flags}");
        assert!(number(&summary["accepted"]) + number(&summary["rejected"]) >= 60.0);
        learned(summary, 0.02);
    }
}

#[test]
fn fit_says_what_it_did_not_believe() {
    let outlier = windows(70, |k, window| window[3] *= if k == 60 { 5.0 } else { 1.0 });
    let answers = fit(&outlier, "").answers();
    assert_eq!(answers[60]["accepted"], false);
    assert!(number(&answers[60]["nis"]) > 7.378);
    assert_eq!(answers[61]["accepted"], true);
    for key in ["alpha", "beta", "gamma"] {
        same(&answers[60][key], &answers[59][key], 0.005, key);
    }
    assert_eq!(number(&answers[70]["summary"]["rejected"]), 1.0);
    let constant = windows(60, |_, it| *it = window(0.35, 512.0, 128.0));
    let answers = fit(&constant, "").answers();
    assert_eq!(answers[60]["summary"]["state"], "unidentifiable");
}

#[test]
fn fit_takes_what_was_seen() {
    let some =
        "{\"t\":0,\"rate\":0}\n{\"t\":0,\"rate\":2,\"input\":512,\"output\":128,\"ttft\":null,\"itl\":9.6}\n";
    let answers = fit(some, "--init 8,.05,.0005").answers();
    assert_eq!(
        (&answers[0]["state"], &answers[0]["accepted"]),
        (&json!("no_traffic"), &json!(false))
    );
    assert_eq!(
        (&answers[0]["nis"], &answers[1]["accepted"]),
        (&Value::Null, &json!(true))
    );
    let nothing = fit("", "").answers();
    assert_eq!(nothing.len(), 1);
    let summary = &nothing[0]["summary"];
    assert_eq!(
        (&summary["alpha"], &summary["state"]),
        (&Value::Null, &json!("no_traffic"))
    );
}

/// What a server of (8, .05, .0005) that batches was seen to do with so many requests, two endpoints alike: one JSON
/// line a request, in order of dispatch.
fn requests(count: u64) -> Vec<Value> {
    let mut lines = Vec::new();
    for endpoint in ["a", "b"] {
        let mut random = Random(7 + u64::from(endpoint == "b"));
        let mut waiting = std::collections::VecDeque::new();
        let mut at = 0.0;
        for number in 0..count {
            // Slow, then faster: more than one load is seen.
            let gap = if number < count / 2 { 400.0 } else { 180.0 };
            at += -gap * random.next().ln();
            waiting.push_back((
                at,
                200.0 + (600.0 * random.next()).floor(),
                40.0 + (120.0 * random.next()).floor(),
            ));
        }
        serve(endpoint, waiting, &mut lines);
    }
    let at = |line: &Value| number(&line["t"]);
    lines.sort_by(|a, b| at(a).total_cmp(&at(b)));
    lines
}

/// Iteration by iteration: who waits is taken in, prompts are computed whole, everyone else makes a token.
fn serve(endpoint: &str, mut waiting: std::collections::VecDeque<(f64, f64, f64)>, lines: &mut Vec<Value>) {
    let mut now = 0.0_f64;
    let mut batch: Vec<((f64, f64, f64), f64, f64)> = Vec::new();
    while !(waiting.is_empty() && batch.is_empty()) {
        if batch.is_empty() {
            now = now.max(waiting[0].0);
        }
        let come = waiting.iter().take_while(|it| it.0 <= now).count();
        let new: Vec<_> = waiting.drain(..come).collect();
        let prompts: f64 = new.iter().map(|it| it.1).sum();
        let held: f64 = batch.iter().map(|(it, made, _)| it.1 + made).sum();
        now += 8.0 + 0.05 * (batch.len() as f64 + prompts) + 0.0005 * (held + prompts);
        batch.iter_mut().for_each(|it| it.1 += 1.0);
        batch.extend(new.into_iter().map(|it| (it, 1.0, now)));
        batch.retain(|((at, input, output), made, first)| {
            if made >= output {
                lines.push(
                    json!({"t": at / 1e3, "input": input, "output": output, "dispatched": at / 1e3,
                                  "first": first / 1e3, "done": now / 1e3, "endpoint": endpoint}),
                );
            }
            made < output
        });
    }
}

/// xorshift, from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn fit_learns_from_requests() {
    let lines = requests(400);
    let answers = fit(&text(&lines), "--plot fit.svg").answers();
    assert_eq!(answers.len(), 801);
    assert_eq!(
        (&answers[0]["alpha"], &answers[0]["state"]),
        (&Value::Null, &json!("learning"))
    );
    let summary = &answers[800]["summary"];
    assert_eq!(summary["state"], "converged", "{summary}");
    assert_eq!(
        (number(&summary["accepted"]), number(&summary["undefined"])),
        (800.0, 0.0)
    );
    learned(summary, 0.05);
    // Moments are of any clock, and requests may stand in any order; what is learned is the same.
    let mut later = lines.clone();
    for line in &mut later {
        for key in ["t", "dispatched", "first", "done"] {
            line[key] = json!(number(&line[key]) + 1_700_000_000.0);
        }
    }
    later.reverse();
    let later = fit(&text(&later), "").answers();
    for key in ["alpha", "beta", "gamma"] {
        same(&later[800]["summary"][key], &summary[key], 0.01, key);
    }
    same(
        &later[0]["alpha"],
        &answers[799]["alpha"],
        0.01,
        "the last one stands first",
    );
}

#[test]
fn fit_counts_what_says_nothing_apart() {
    let mut lines = requests(200);
    for line in lines.iter_mut().step_by(4) {
        line["first"] = Value::Null;
    }
    let answers = fit(&text(&lines), "").answers();
    let summary = &answers[400]["summary"];
    // And those of which it isn't known whether such a prompt was computed while they decoded.
    assert!((100.0..=150.0).contains(&number(&summary["undefined"])), "{summary}");
    assert!(
        number(&summary["alpha"]) > 6.0 && number(&summary["alpha"]) < 10.0,
        "{summary}"
    );
    let at_first: Vec<&Value> = answers[..400]
        .iter()
        .step_by(4)
        .map(|it| &it["accepted"])
        .collect();
    assert!(at_first.iter().all(|it| **it == json!(false)));
}

#[test]
fn a_bad_line_is_named() {
    let window = r#"{"t":1,"rate":2,"input":512,"output":128,"ttft":35,"itl":9.6}"#;
    let request = r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":1.5,"done":2,"endpoint":"a"}"#;
    let cases = [
        (window, "", "not a JSON object"),
        (window, "[1]", "not a JSON object"),
        (window, "{\"t\":2,\"rate\":", "column"),
        (window, "{}", "neither"),
        (window, request, "one form"),
        (request, window, "one form"),
        (window, r#"{"t":2,"rate":1,"done":3}"#, "two forms"),
        (window, r#"{"t":0.5,"rate":0}"#, "t: 0.5 lies before 1"),
        (window, r#"{"t":2,"rate":-1,"input":1,"output":1}"#, "rate"),
        (window, r#"{"t":2,"rate":1e31,"input":1,"output":1}"#, "rate"),
        (window, r#"{"t":2,"rate":1e999}"#, "column"),
        (window, r#"{"t":2,"rate":NaN}"#, "column"),
        (window, r#"{"t":2,"rate":"2"}"#, "rate"),
        (window, r#"{"t":2,"rate":1,"input":1}"#, "output"),
        (window, r#"{"t":2,"rate":0,"speed":1}"#, "`speed`"),
        (window, r#"{"t":2,"t":2,"rate":0}"#, "duplicate"),
        (
            request,
            r#"{"t":1,"input":5,"output":2,"dispatched":3,"done":2}"#,
            "done: 2 lies before",
        ),
        (
            request,
            r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":3,"done":2}"#,
            "first: 3 lies after",
        ),
        (
            request,
            r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":0,"done":2}"#,
            "first: 0 lies before",
        ),
        (
            request,
            r#"{"t":1,"input":5,"output":2,"dispatched":1}"#,
            "`done`",
        ),
        (
            request,
            r#"{"t":1,"input":5,"output":-2,"dispatched":1,"done":2}"#,
            "output",
        ),
        (
            request,
            r#"{"t":1,"input":5,"output":2,"dispatched":1,"done":2,"endpoint":{}}"#,
            "endpoint",
        ),
    ];
    for (first, second, why) in cases {
        let ran = fit(&format!("{first}\n{second}\n{first}\n"), "");
        let said = ran.refused();
        assert!(
            said.starts_with("obs.jsonl:2: ") && said.contains(why),
            "{second}: {said}"
        );
        // Windows are answered as they come; requests when all are known.
        let answered = String::from_utf8_lossy(&ran.output.stdout).lines().count();
        assert_eq!(answered, usize::from(first == window), "{second}");
    }
    let window_lines = format!("{window}\n");
    for flags in [
        "--init 0,1,1",
        "--init 8,1",
        "--init 8,1,x",
        "--init 8,1,1 --no-bootstrap",
        "--plot no/such.svg",
    ] {
        fit(&window_lines, flags).refused();
    }
    let long = format!("{{\"t\":1,\"endpoint\":\"{}\"}}", "a".repeat(1 << 20));
    assert!(
        fit(&long, "")
            .refused()
            .starts_with("obs.jsonl:1: a line has less")
    );
}

#[test]
fn fit_draws_observed_against_fitted() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("fit.svg");
    let flags = format!("--plot {}", to.display());
    for (recording, panels) in [(windows(60, |_, _| {}), 2), (text(&requests(50)), 1)] {
        fit(&recording, &flags).answers();
        let svg = std::fs::read_to_string(&to).expect("a picture");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("observed, ms").count(), panels);
        assert!(svg.matches("<circle").count() >= 50);
    }
}

#[test]
fn analyze_says_what_each_variant_needs() {
    let pods = json!([{"rate": 2, "input": 100, "output": 50, "ttft": 200, "itl": 20},
                      {"rate": 6, "input": 300, "output": 150, "ttft": 400, "itl": 30},
                      {"rate": 0, "input": 999, "output": 999, "ttft": 999, "itl": 999}]);
    let snapshot = json!({"slo": {"target_ttft": 500, "target_itl": "50ms"}, "total_rate": null, "variants": [
        {"name": "a", "replicas": 3, "pending": 0, "max_batch": 256, "params": [8, 0.05, 0.0005], "pods": pods},
        {"name": "b", "replicas": 1, "pending": 1, "max_batch": 256, "params": null, "pods": pods},
        {"name": "c", "replicas": 2, "pending": 0, "max_batch": 256, "params": [8, 0.05, 0.0005], "pods": []},
    ]});
    let analysis = analyze(&snapshot).answer();
    assert_eq!(
        analysis["slo"],
        json!({"ttft": 500.0, "itl": 50.0, "source": "explicit"})
    );
    let flags = "--alpha 8 --beta .05 --gamma .0005 --input 250 --output 125 --slo-ttft 500 --slo-itl 50 --max-batch 256";
    let sized = model(&format!("size {flags} --total-rate 8"), &[]).answer();
    let [a, b, c] = list(&analysis, "variants") else {
        panic!("three variants: {analysis}");
    };
    assert_eq!((&a["name"], &a["error"]), (&json!("a"), &Value::Null));
    same(&a["lambda_star"], &sized["lambda_star"], 1e-9, "lambda*");
    same(&a["n_star"], &sized["n_star"], 1e-9, "n*");
    same(&a["demand"], &json!(8), 1e-9, "what it served");
    same(
        &a["capacity"],
        &json!(3.0 * number(&sized["lambda_star"])),
        1e-9,
        "of three",
    );
    assert_eq!(a["required"], sized["required_replicas"]);
    assert_eq!(b["error"], "no parameters");
    for key in ["lambda_star", "capacity", "demand", "utilization"] {
        assert_eq!(number(&b[key]), 0.0, "{key}");
        assert_eq!(number(&c[key]), 0.0, "{key}");
    }
    assert!(c["error"].is_string() && c["bootstrap"].is_null());
    assert_eq!(
        a["bootstrap"], b["bootstrap"],
        "whether or not there are parameters"
    );
}

#[test]
fn analyze_takes_targets_from_what_there_is() {
    let variant = |name: &str, params: Value| {
        let pods = json!([{"rate": 1, "input": 1000, "output": 200, "ttft": 200, "itl": 20}]);
        json!({"name": name, "replicas": 1, "pending": 0, "max_batch": 256, "params": params, "pods": pods})
    };
    let of = |slo: Value, variants: Value| {
        analyze(&json!({"slo": slo, "total_rate": 30, "variants": variants})).answer()
    };
    let both = json!([
        variant("A", json!([8, 0.05, 0.0005])),
        variant("B", json!([16, 0.04, 0.0002]))
    ]);
    let inferred = of(json!({}), both);
    assert_eq!(inferred["slo"]["source"], "model");
    same(&inferred["slo"]["ttft"], &json!(88.2), 1e-6, "the larger one");
    same(&inferred["slo"]["itl"], &json!(48.2601), 1e-6, "the larger one");
    let demand: f64 = list(&inferred, "variants")
        .iter()
        .map(|it| number(&it["demand"]))
        .sum();
    assert!((demand - 30.0).abs() < 1e-9, "the offered load, shared");
    let unknown = of(json!({"slo_multiplier": 0}), json!([variant("A", Value::Null)]));
    assert_eq!(
        unknown["slo"],
        json!({"ttft": 300.0, "itl": 30.0, "source": "observed"})
    );
    let nothing = of(json!({}), json!([]));
    assert_eq!(
        nothing,
        json!({"slo": {"ttft": null, "itl": null, "source": "none"}, "variants": []})
    );
}

#[test]
fn a_bad_snapshot_is_named_by_line_and_key() {
    let of = |text: &str| model("analyze s.json", &[("s.json", text)]).refused();
    let cases = [
        ("", "s.json:1: "),
        ("[]", "s.json:1: "),
        ("{\"slo\":{}}", "`variants`"),
        ("{\"variants\":[]} {}", "s.json:1: trailing"),
        (
            "{\n\"slo\":{\"target_ttft\":500},\n\"variants\":[]}",
            "s.json:2: slo: target_ttft and target_itl",
        ),
        (
            "{\"slo\":{\"slo_multiplier\":1},\"variants\":[]}",
            "slo.slo_multiplier",
        ),
        ("{\"slo\":{\"targetTTFT\":1},\"variants\":[]}", "targetTTFT"),
        ("{\"total_rate\":-1,\"variants\":[]}", "total_rate"),
        (
            "{\"variants\":[\n{\"name\":\"a\",\n\"pods\":[{\"rate\":-1}]}]}",
            "s.json:3: variants[0].pods[0]",
        ),
        ("{\"variants\":[{\"name\":\"a\",\"params\":[8,1]}]}", "params"),
        ("{\"variants\":[{\"name\":\"a\",\"params\":[8,1,-1]}]}", "params"),
        ("{\"variants\":[{\"name\":\"a\",\"max_batch\":0}]}", "max_batch"),
        (
            "{\"variants\":[{\"name\":\"a\"},{\"name\":\"a\"}]}",
            "`a` is listed twice",
        ),
    ];
    for (text, why) in cases {
        let said = of(text);
        assert!(
            said.starts_with("s.json:") && said.contains(why),
            "{text}: {said}"
        );
    }
}
