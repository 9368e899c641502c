# The commands of the repository by name. Each is one line, to be run without just as well.

# Envoy, filter and companion in front of simulated model servers.
demo *args:
    cargo demo {{ args }}

# The binary to ship, and its symbols beside it: a backtrace and a debugger find them there. Needs objcopy (binutils).
release:
    CARGO_PROFILE_RELEASE_STRIP=none cargo build --release --locked --package penstock
    mkdir -p target/dist
    objcopy --only-keep-debug target/release/penstock target/dist/penstock.debug
    cd target/dist && objcopy --strip-debug --add-gnu-debuglink=penstock.debug ../release/penstock penstock

# Every test, those through a real Envoy included.
test *args:
    cargo test --workspace {{ args }}

# What a change must pass.
check:
    bash .ci/run

# Measures, and writes docs/bench: engine, shares, gateway (which needs wrk and oha) or long; without a word, the first
# three.
bench *what:
    bash tests/benches/run {{ what }}

# What is learned of three servers of known speed, through a real gateway, beside the truth; two minutes.
model-live *args:
    bash tests/benches/run model-live {{ args }}

# What the model costs for each request that ends and for each window's fit.
model-cost:
    cargo run --release --package penstock-model --example cost

# Worlds of random seeds, in which everything goes wrong, until one fails or the time is over: just soak --for 4h
soak *args:
    cargo run --package penstock-sim --example soak -- {{ args }}

# The model in a closed loop with servers of known parameters, in virtual time: writes docs/bench/model.json, model.md and
# plots. All, or learned, gate, servers or replicas.
model *what:
    cargo run --release --package penstock-sim --example model -- {{ what }}

# Hostile input for everything that reads what others wrote: one target or all, for so many seconds each; `keep` adds
# what was found to the corpora. Needs a nightly toolchain.
fuzz target="all" seconds="60":
    bash tests/fuzz/run {{ target }} {{ seconds }}

# Writes the generated protocol code anew.
proto:
    PENSTOCK_REGENERATE=1 cargo test --package penstock-tests --test generated

# Writes the page of all configuration keys anew.
reference:
    PENSTOCK_REGENERATE=1 cargo test --workspace --test config

# Draws docs/top.svg: what `penstock top` shows of a running demo. Needs tmux.
capture:
    cargo build --package penstock
    python3 docs/capture.py target/debug/penstock docs/top.svg

fmt:
    cargo fmt --all
