# The repository's commands by name. Each recipe is one line that also works without just.

# Runs Envoy, filter and companion in front of simulated model servers.
demo *args:
    cargo demo {{ args }}

# Builds the release binary, with its debug symbols in a file beside it. Needs objcopy (binutils).
release:
    CARGO_PROFILE_RELEASE_STRIP=none cargo build --release --locked --package penstock
    mkdir -p target/dist
    objcopy --only-keep-debug target/release/penstock target/dist/penstock.debug
    cd target/dist && objcopy --strip-all --add-gnu-debuglink=penstock.debug ../release/penstock penstock

# Runs every test, including those through a real Envoy.
test *args:
    cargo test --workspace {{ args }}

# Runs every check that a change must pass, or one part: contributor, world.
check *part:
    bash .ci/run {{ part }}

# Measures and writes docs/bench: engine, shares, gateway (needs wrk and oha), long, outcome, sources or scale; without an argument, the first three.
# `failing` prints the table of docs/endpoints.md.
# `outcome --chat FILE --code FILE` compares policies on traces, else on made-up traffic.
# `gateway --peer-binary epp=PATH` measures an endpoint picker of another project in the same run.
bench *what:
    bash tests/studies/run {{ what }}

# Prints the learned parameters of three servers of known speed behind a real gateway, beside the true ones; two minutes.
model-live *args:
    bash tests/studies/run model-live {{ args }}

# Has a real Prometheus answer the queries of the autoscaler examples in docs/model.md, from an overloaded gateway; a minute. `kube`: applies
# the manifests of the pages to the API server of KUBECONFIG, a cluster for tests, and has a companion count its pods.
autoscaling *what:
    bash tests/autoscaling/run {{ what }}

# Kills, ends, freezes and cuts off the leader of two companions whose lease is in the API server of KUBECONFIG, a cluster for tests (needs
# kubectl).
replicas-kubernetes *args:
    cargo test --package penstock-tests --features api-server --test kubernetes -- replicas:: --test-threads 1 --nocapture {{ args }}

# Lists, loses and finds the pods of an InferencePool in the API server of KUBECONFIG, a cluster for tests (needs kubectl).
discovery-kubernetes *args:
    cargo test --package penstock-tests --features api-server --test kubernetes -- discovery:: --test-threads 1 --nocapture {{ args }}

# Sends the requests of the end-to-end tests through the endpoint picker in place of the filter; six minutes.
picker-door *args:
    bash tests/picker-door/run {{ args }}

# Lets the pool, its pods, objectives and rewrites come and go in the API server of KUBECONFIG, a cluster for tests, while requests wait at the
# endpoint picker (needs kubectl).
picker-kubernetes *args:
    cargo test --package penstock-tests --features api-server --test kubernetes -- picker:: --test-threads 1 --nocapture {{ args }}

# Sends requests through a real Envoy Gateway with the resources of `penstock gateway-resources`; ENVOY_GATEWAY is the path of envoy-gateway,
# which `bash .ci/go-program envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway@v1.9.1` builds and prints.
envoy-gateway *args:
    cargo test --package penstock-tests --features envoy-gateway --test envoy_gateway -- --test-threads 1 --nocapture {{ args }}

# Tests the dashboard in a real Chromium, in front of a real gateway with traffic. Needs chromium, or apt-get as root to get it.
dashboard *args:
    CHROMIUM=$(bash .ci/chromium) cargo test --workspace --features penstock-tests/browser --test dashboard -- --test-threads 1 {{ args }}

# Draws docs/images, the dashboard of `penstock demo`, after 15 minutes or as many as the argument says. Needs chromium like `just dashboard`.
screenshots minutes="15":
    CHROMIUM=$(bash .ci/chromium) bash tests/studies/run screenshots {{ minutes }}

# Builds the images of deploy/images and runs them. As root; needs buildah, musl-gcc and curl, or apt-get to get them.
images:
    bash .ci/images

# Checks the Helm chart; needs helm, or its path in HELM. `cluster`: see helm-kubernetes.
helm *what:
    bash tests/helm/run {{ what }}

# Installs the Helm chart in the API server of KUBECONFIG, a cluster for tests without nodes, and runs its pods here with the Envoy ENVOY. As
# root; needs the images of `just images`, buildah, kubectl, helm and Go.
helm-kubernetes envoy:
    bash tests/helm/run cluster {{ envoy }}

# Measures the model's cost per completed request and per window.
model-cost:
    bash tests/studies/run model-cost

# Counts the companion's instructions and allocations per request, over real sockets. Needs valgrind. An argument chooses the loads whose
# names contain it.
session-cost *load:
    bash tests/studies/run session-cost {{ load }}

# Simulates random worlds with faults until one fails or the time is over: just soak --for 4h
soak *args:
    bash tests/studies/run soak {{ args }}

# Runs the model in a closed loop with servers of known parameters, in virtual time; writes docs/bench/model.json, model.md and plots.
# All parts, or learned, gate, servers or replicas.
model *what:
    bash tests/studies/run model {{ what }}

# Fuzzes the readers of untrusted input: one target or all, for `seconds` each; `keep` adds the findings to the corpora. Needs a nightly
# toolchain.
fuzz target="all" seconds="60":
    bash tests/fuzz/run {{ target }} {{ seconds }}

# Regenerates the protocol code.
proto:
    PENSTOCK_REGENERATE=1 cargo test --package penstock-tests --test rules generated

# Regenerates the reference page of all configuration keys.
reference:
    PENSTOCK_REGENERATE=1 cargo test --workspace --test configuration config::

# Draws docs/top.svg, a picture of `penstock top` beside a running demo. Needs tmux.
capture:
    cargo build --package penstock
    python3 docs/capture.py target/debug/penstock docs/top.svg

fmt:
    cargo fmt --all

# Real engines behind a real gateway: `setup` installs vLLM for the CPU (9 GB, six minutes), `counts` and `flood` print the tables of
# docs/engines.md. Not part of `just check`.
vllm *what:
    bash tests/engines/run vllm {{ what }}

# The flood on `transformers serve` with continuous batching; on a machine with a GPU, with `transformers` and a model.
gpu *args:
    bash tests/engines/run gpu {{ args }}

# The libraries of clients in front of a real gateway: `setup` installs them, `check` and `agents` print the tables of docs/clients.md. Not part of `just check`.
clients what:
    bash tests/clients/run {{ what }}
