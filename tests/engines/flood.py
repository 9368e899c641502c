"""Floods a chat server with streams, and prints a table of every ten seconds: the tokens per second that the engine counted, what it ran
and queued, and the first token of a small tenant.

    flood.py URL --metrics URL... [--clients N] [--tokens N] [--seconds N] [--model NAME] [--status URL] [--json FILE]

Only the standard library is used, so that the clients cost little beside the engine.
"""

import argparse
import asyncio
import json
import random
import re
import time
import urllib.request
from urllib.parse import urlparse


def words(count, rng):
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(count))


def head(url, tenant, length):
    lines = [
        f"POST {url.path or '/v1/chat/completions'} HTTP/1.1", f"host: {url.netloc}", "content-type: application/json",
        f"x-penstock-tenant: {tenant}", f"content-length: {length}", "connection: close", "", "",
    ]
    return "\r\n".join(lines).encode()


async def chat(url, model, tokens, prompt, tenant):
    """One streamed answer: seconds to its first text, seconds to its end, and the status."""
    body = json.dumps({
        "model": model, "stream": True, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }).encode()
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    first = None
    try:
        writer.write(head(url, tenant, len(body)) + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while data := await reader.read(65536):
            if first is None and re.search(rb'"content":"[^"]', data):
                first = time.monotonic() - began
    finally:
        writer.close()
    return first, time.monotonic() - began, status


async def flood(url, arguments, until, rng, failures):
    while time.monotonic() < until:
        try:
            _, _, status = await chat(url, arguments.model, arguments.tokens, words(40, rng), "flood")
        except OSError:
            status = 0
        if status != 200:
            failures[status] = failures.get(status, 0) + 1
            await asyncio.sleep(0.5)


async def small(url, arguments, until, rng, firsts, durations):
    await asyncio.sleep(2)
    while time.monotonic() < until:
        try:
            first, duration, status = await chat(url, arguments.model, 8, words(20, rng), "small")
        except OSError:
            continue
        if status == 200 and first is not None:
            firsts.append((time.monotonic(), first))
            durations.append(duration)
        await asyncio.sleep(1)


def read_metrics(urls):
    sums = {"generation_tokens_total": 0.0, "num_requests_running": 0.0, "num_requests_waiting": 0.0}
    for url in urls:
        page = urllib.request.urlopen(url, timeout=5).read().decode()
        for line in page.splitlines():
            found = re.match(r"vllm:(\w+)\{[^}]*\} (\S+)$", line)
            if found and found[1] in sums and "reason=" not in line:
                sums[found[1]] += float(found[2])
    return sums


def gate(url):
    if not url:
        return ""
    pool = json.load(urllib.request.urlopen(url, timeout=5))["pools"][0]
    return json.dumps(pool.get("gate", {}))[:160]


async def measure(arguments, until, firsts, rows):
    loop = asyncio.get_running_loop()
    before, since = await loop.run_in_executor(None, read_metrics, arguments.metrics), time.monotonic()
    began = since
    while since < until - 1:
        queued = []
        while time.monotonic() < since + 10:
            await asyncio.sleep(1)
            queued.append((await loop.run_in_executor(None, read_metrics, arguments.metrics)))
        now, at = queued[-1], time.monotonic()
        rate = (now["generation_tokens_total"] - before["generation_tokens_total"]) / (at - since)
        waited = sorted(first for when, first in firsts if since < when <= at)
        middle = waited[len(waited) // 2] if waited else float("nan")
        mean = lambda name: sum(page[name] for page in queued) / len(queued)
        row = {"at": round(at - began), "tokens_per_s": round(rate, 1), "running": round(mean("num_requests_running"), 1),
               "queued_inside": round(mean("num_requests_waiting"), 1), "first_p50": round(middle, 2),
               "first_max": round(max(waited, default=float("nan")), 2)}
        rows.append(row)
        print(*row.values(), await loop.run_in_executor(None, gate, arguments.status), sep="\t", flush=True)
        before, since = now, at


async def run(arguments):
    rng, url = random.Random(1), urlparse(arguments.url)
    until = time.monotonic() + arguments.seconds
    firsts, durations, failures, rows = [], [], {}, []
    print("at\ttokens/s\trunning\tqueued inside\tfirst p50\tfirst max\tgate", flush=True)
    clients = [flood(url, arguments, until, rng, failures) for _ in range(arguments.clients)]
    await asyncio.wait(
        [asyncio.ensure_future(task) for task in
         [*clients, small(url, arguments, until, rng, firsts, durations), measure(arguments, until, firsts, rows)]],
        timeout=arguments.seconds + 5)
    print("failures by status:", failures)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "failures": failures, "firsts": [first for _, first in firsts]}, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--metrics", nargs="+", required=True)
    parser.add_argument("--clients", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--status")
    parser.add_argument("--json")
    asyncio.run(run(parser.parse_args()))
