"""Floods `transformers serve` with continuous batching behind a real gateway, gate by gate, on a machine with a GPU.

    gpu.py PENSTOCK MODEL [--device cuda:0] [--clients N] [--seconds N] [--serve FLAGS]

MODEL is a folder or a name that `transformers serve` takes. The server has no metrics page and no usage in its streams, so tokens are events
with text.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from pathlib import Path
from urllib.parse import urlparse

import flood
from vllm import free_port, gateway, get, running, wait_for

GATES = {
    "none": "stock: {watermark_per_backend: none}",
    "16": "stock: {watermark_per_backend: 16}",
    "64": "stock: {watermark_per_backend: 64}",
    "auto": "stock: {watermark_per_backend: auto}",
}


async def stream(url, model, tokens, tenant, events):
    """One streamed answer; adds the time of each event with text. Returns the seconds to the first."""
    content = f"{tenant} " + "word " * 100
    asked = {"model": model, "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": content}]}
    data = json.dumps(asked).encode()
    began, first = time.monotonic(), None
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(flood.head(url, tenant, len(data)) + data)
        await writer.drain()
        while line := await asyncio.wait_for(reader.readline(), 300):
            if re.search(rb'"content": ?"[^"]', line):
                now = time.monotonic()
                events.append(now)
                first = first or now - began
    finally:
        writer.close()
    return first


async def load(port, model, clients, seconds):
    url = urlparse(f"http://127.0.0.1:{port}/v1/chat/completions")
    began = time.monotonic()
    events, firsts = [], []

    async def client(tenant, tokens):
        while time.monotonic() < began + seconds:
            try:
                first = await stream(url, model, tokens, tenant, events)
            except (OSError, asyncio.TimeoutError):
                await asyncio.sleep(0.5)
                continue
            if tenant == "small" and first is not None:
                firsts.append(first)

    tasks = [asyncio.ensure_future(client("flood", 96)) for _ in range(clients)]
    tasks += [asyncio.ensure_future(client("small", 16)) for _ in range(2)]
    _, late = await asyncio.wait(tasks, timeout=seconds + 5)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    slots = [0] * int(seconds // 10)
    for event in events:
        slot = int((event - began) // 10)
        if slot < len(slots):
            slots[slot] += 1
    firsts.sort()
    middle = round(firsts[len(firsts) // 2], 2) if firsts else None
    print("tokens/s in each 10 s:", [slot / 10 for slot in slots], "first token of the small tenant, p50:", middle, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("penstock", type=Path)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--clients", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--serve", nargs="*", default=["--dtype", "bfloat16"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, server = Path(name), free_port()
        serve = ["transformers", "serve", arguments.model, "--continuous-batching", "--host", "127.0.0.1", "--port", server]
        with running([*serve, "--device", arguments.device, *arguments.serve], folder / "serve.log") as process:
            wait_for(f"http://127.0.0.1:{server}/health", process, 300)
            print("no gateway", flush=True)
            asyncio.run(load(server, arguments.model, arguments.clients, arguments.seconds))
            for gate, keys in GATES.items():
                with gateway(arguments.penstock, folder, [server], f"{keys}\n  scrape: {{path: null}}") as ports:
                    print(f"gate: {gate}", flush=True)
                    asyncio.run(load(ports.gateway, arguments.model, arguments.clients, arguments.seconds))
                    print(json.loads(get(f"http://127.0.0.1:{ports.http}/status"))["pools"][0]["gate"], flush=True)


if __name__ == "__main__":
    main()
