"""Counts, floods and outcomes on real vLLM servers behind a real gateway, as tables for docs/engines.md and docs/bench/engines.md.

    vllm.py PENSTOCK [counts] [flood] [outcome] [--laws A,B,C,SEQS ...] [--servers N]
            [--workloads chat code alternating] [--noise S] [--seconds N]

PENSTOCK is the binary. Servers come from `run serve`; everything that is started is ended.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import flood
import outcome

HERE = Path(__file__).parent
LAWS = ["78,0,0,96", "30,0.02,0.002,16", "20,0.5,0.01,64", "200,0.1,0.02,64"]
GATES = {
    "none": "stock: {watermark_per_backend: none}",
    "auto": "stock: {watermark_per_backend: auto}",
    "auto, no metrics": "stock: {watermark_per_backend: auto}\n  scrape: {path: null}",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def wait_for(url, process, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} has ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            get(url)
            return
        time.sleep(0.5)
    sys.exit(f"{url} doesn't answer after {seconds} s")


@contextlib.contextmanager
def running(arguments, log, **environment):
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [str(argument) for argument in arguments], stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **environment})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def engine(folder, seqs, gputime=None, noise=0.0):
    port = free_port()
    environment = {"SEQS": str(seqs)} | ({"GPUTIME": gputime, "GPUTIME_NOISE": str(noise)} if gputime else {})
    with running([HERE / "run", "serve", port], folder / f"engine-{port}.log", **environment) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, 240)
        yield port


@contextlib.contextmanager
def gateway(penstock, folder, servers, keys, queue="total_capacity: 5000, flow_capacity: 5000, ttl: 20m"):
    ports = {name: free_port() for name in ("gateway", "envoy_admin", "grpc", "http")}
    listen = ", ".join(f"{name}: '127.0.0.1:{port}'" for name, port in ports.items())
    addresses = ", ".join(f"'127.0.0.1:{server}'" for server in servers)
    config = folder / "penstock.yaml"
    config.write_text(
        f"listen: {{{listen}}}\npools:\n- name: chat\n  endpoints: {{static: [{addresses}]}}\n  {keys}\n"
        f"  queue: {{{queue}}}\n")
    with running([penstock, "up", "--config", config], folder / "gateway.log") as process:
        wait_for(f"http://127.0.0.1:{ports['http']}/readyz", process, 60)
        wait_for(f"http://127.0.0.1:{ports['gateway']}/v1/models", process, 60)
        yield types.SimpleNamespace(**ports)


# Counts: what Penstock charges beside what the engine has counted.

def body(path, stream, more):
    text = "Tell me about queues."
    if path == "/v1/completions":
        asked = {"prompt": text, "max_tokens": 20}
    elif path == "/v1/responses":
        asked = {"input": text, "max_output_tokens": 20}
    else:
        asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
    return {"model": "tiny", "stream": stream, **asked, **more}


KINDS = [
    ("chat, whole", "/v1/chat/completions", False, {}),
    ("chat, stream", "/v1/chat/completions", True, {}),
    ("chat, stream with usage", "/v1/chat/completions", True, {"stream_options": {"include_usage": True}}),
    ("chat, n = 3", "/v1/chat/completions", False, {"n": 3}),
    ("chat, stream, n = 3", "/v1/chat/completions", True, {"n": 3}),
    ("completions, whole", "/v1/completions", False, {}),
    ("completions, stream", "/v1/completions", True, {}),
    ("completions, two prompts", "/v1/completions", False, {"prompt": ["One.", "Two and three."]}),
    ("messages, whole", "/v1/messages", False, {}),
    ("messages, stream", "/v1/messages", True, {}),
    ("responses, whole", "/v1/responses", False, {}),
    ("responses, stream", "/v1/responses", True, {}),
]


def metric(page, name):
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in found)


def engine_tokens(port):
    page = get(f"http://127.0.0.1:{port}/metrics")
    return [metric(page, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]


def settled_tokens(port):
    page = get(f"http://127.0.0.1:{port}/metrics")
    return [metric(page, f"penstock_{kind}_tokens_total") for kind in ("input", "output")]


def send(port, path, asked):
    data = json.dumps(asked).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def counted(server, gate, path, asked):
    """What the engine and Penstock have counted for one request: prompt and output each."""
    before = engine_tokens(server), settled_tokens(gate.http)
    send(gate.gateway, path, asked)
    deltas = None
    # The engine's page is a little late.
    for _ in range(20):
        after = engine_tokens(server), settled_tokens(gate.http)
        deltas = [[int(now - then) for now, then in zip(a, b)] for a, b in zip(after, before)]
        if deltas[0][1] and deltas[0] == deltas[1]:
            break
        time.sleep(0.1)
    return deltas


def counts(penstock, folder):
    """Prints the table. Returns how many kinds are counted otherwise than by the engine where the answer is asked for its usage."""
    print("\n| request | engine: prompt, output | `usage.include: true` | without |\n|---|---|---|---|", flush=True)
    rows = {kind[0]: [] for kind in KINDS}
    wrong = 0
    with engine(folder, 16) as server:
        for include in (True, False):
            keys = f"usage: {{include: {str(include).lower()}}}\n  stock: {{watermark_per_backend: 8}}"
            with gateway(penstock, folder, [server], keys) as gate:
                for name, path, stream, more in KINDS:
                    theirs, ours = counted(server, gate, path, body(path, stream, more))
                    # The engine's counter has the prompt once for each sequence, its answer has it once.
                    theirs[0] //= more.get("n", 1)
                    wrong += include and ours != theirs
                    rows[name] += ([theirs] if include else []) + [ours]
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{prompt}, {output}" for prompt, output in row) + " |")
    return wrong


# Floods: three times as many clients as the server computes at a time.

def flood_once(port, metrics, clients, seconds, status):
    arguments = types.SimpleNamespace(
        url=f"http://127.0.0.1:{port}/v1/chat/completions", metrics=metrics, clients=clients, tokens=96, seconds=seconds,
        model="tiny", status=status, json=None)
    return asyncio.run(flood.run(arguments))


def wait_until_idle(pages):
    while any(metric(get(page), "vllm:num_requests_running") > 0 for page in pages):
        time.sleep(0.5)


def floods(penstock, folder, laws, servers, noise, seconds):
    for law in laws:
        *gputime, seqs = law.split(",")
        print(f"\n{servers} x {','.join(gputime)} ms, {seqs} sequences, noise {noise}", flush=True)
        with contextlib.ExitStack() as stack:
            engines = [stack.enter_context(engine(folder, seqs, ",".join(gputime), noise)) for _ in range(servers)]
            metrics = [f"http://127.0.0.1:{port}/metrics" for port in engines]
            for name, keys in GATES.items():
                wait_until_idle(metrics)
                with gateway(penstock, folder, engines, keys) as gate:
                    print(f"gate: {name}", flush=True)
                    clients = 3 * int(seqs) * servers
                    flood_once(gate.gateway, metrics, clients, seconds, f"http://127.0.0.1:{gate.http}/status")


# Outcomes: tenants at 0.9 and twice the capacity of two servers.

OUTCOME_LAW = (60.0, 0.04, 0.004, 16)
OUTCOME_GATES = {
    "no gate": "stock: {watermark_per_backend: none}",
    "fixed, 10": "stock: {watermark_per_backend: 10}",
    "fixed, 16": "stock: {watermark_per_backend: 16, deviation: 0.01, upper_bound_per_backend: 16}",
    "auto": "stock: {watermark_per_backend: auto}",
}


def outcomes(penstock, folder, workloads, noise, seconds):
    *law, seqs = OUTCOME_LAW
    settling = seconds / 4
    with contextlib.ExitStack() as stack:
        gputime = ",".join(map(str, law))
        engines = [stack.enter_context(engine(folder, seqs, gputime, noise)) for _ in range(2)]
        pages = [f"http://127.0.0.1:{port}/metrics" for port in engines]
        for workload in workloads:
            for load in (0.9, 2.0):
                requests = outcome.trace(workload, load, law, seqs, len(engines), seconds)
                with open(folder / f"{workload}-{load}.json", "w", encoding="utf-8") as file:
                    json.dump([vars(request) for request in requests], file)
                for name, keys in OUTCOME_GATES.items():
                    wait_until_idle(pages)
                    with gateway(penstock, folder, engines, keys, "ttl: 1500ms") as gate:
                        url = f"http://127.0.0.1:{gate.gateway}/v1/chat/completions"
                        served = asyncio.run(outcome.run(url, requests))
                    row = outcome.row(served, seconds, settling)
                    print(f"| {workload}, {load} | {name} | " + " | ".join(row.values()) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("penstock", type=Path)
    parser.add_argument("what", nargs="*", default=["counts", "flood"])
    parser.add_argument("--laws", nargs="+", default=LAWS)
    parser.add_argument("--workloads", nargs="+", default=["chat", "code", "alternating"])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=82)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = counts(arguments.penstock, Path(folder)) if "counts" in arguments.what else 0
        if "flood" in arguments.what:
            floods(
                arguments.penstock, Path(folder), arguments.laws, arguments.servers, arguments.noise, arguments.seconds)
        if "outcome" in arguments.what:
            outcomes(arguments.penstock, Path(folder), arguments.workloads, arguments.noise, arguments.seconds)
    sys.exit(f"{wrong} kinds of requests are counted otherwise" if wrong else 0)


if __name__ == "__main__":
    main()
