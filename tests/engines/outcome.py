"""What tenants get of real servers at a given load: one trace of requests, sent at its times whatever becomes of them.

Used by vllm.py. The tenants are those of `just bench outcome`: two greedy ones, a batch job, and 15 small ones, one of which is urgent.
"""

import asyncio
import dataclasses
import json
import math
import random
import re
import time
from urllib.parse import urlparse

# Of what is served, this counts as in time: seconds from the arrival to the first token, and between two tokens.
FIRST_TARGET, ITL_TARGET = 2.0, 0.15
GREEDY = [("greedy-1", 0.3), ("greedy-2", 0.2), ("batch", 0.2)]
SMALL = [("urgent", 0.02)] + [(f"small-{number}", 0.02) for number in range(1, 15)]
PRIORITIES = {"urgent": "critical", "batch": "sheddable"}
# Medians of prompt and answer in tokens, and the deviations of their logarithms. Smaller than in the simulation, because a prompt costs a
# CPU more than the law says.
KINDS = {"chat": ((200, 0.5), (110, 0.7)), "code": ((450, 0.4), (16, 0.9))}
PROMPT_MAX, OUTPUT_MAX, TOKENS_A_WORD = 1200, 400, 5


@dataclasses.dataclass
class Request:
    at: float
    tenant: str
    prompt: int
    output: int


@dataclasses.dataclass
class Served:
    request: Request
    status: int
    first: float | None
    last: float | None

    def is_in_time(self):
        if self.status != 200 or self.first is None:
            return False
        itl = (self.last - self.first) / max(self.request.output - 1, 1)
        return self.first <= FIRST_TARGET and itl <= ITL_TARGET


def draw(kind, rng):
    (prompt, prompt_deviation), (output, output_deviation) = KINDS[kind]
    sized = lambda median, deviation, most: min(max(int(rng.lognormvariate(math.log(median), deviation)), 2), most)
    return sized(prompt, prompt_deviation, PROMPT_MAX), sized(output, output_deviation, OUTPUT_MAX)


def kind_at(workload, at):
    return workload if workload != "alternating" else ["chat", "code"][int(at / 15) % 2]


def capacity(kind, law, seqs, servers):
    """Requests per second of full servers, by the law and the mean request."""
    rng = random.Random(7)
    drawn = [draw(kind, rng) for _ in range(4000)]
    prompt, output = (sum(sizes) / len(drawn) for sizes in zip(*drawn))
    alpha, beta, gamma = law
    iteration = alpha + beta * seqs * (1 + prompt / output) + gamma * seqs * (prompt + output / 2)
    return servers * seqs / (iteration / 1000 * output)


def trace(workload, load, law, seqs, servers, seconds):
    rng = random.Random(11)
    rates = {kind: load * capacity(kind, law, seqs, servers) for kind in KINDS}
    names, weights = zip(*(GREEDY + SMALL))
    requests, at = [], 0.0
    while True:
        at += rng.expovariate(rates[kind_at(workload, at)])
        if at >= seconds:
            return requests
        requests.append(Request(at, rng.choices(names, weights)[0], *draw(kind_at(workload, at), rng)))


async def send(url, request, began, rng):
    await asyncio.sleep(began + request.at - time.monotonic())
    words = " ".join(f"w{rng.randrange(1000)}" for _ in range(max(request.prompt // TOKENS_A_WORD, 1)))
    body = json.dumps({
        "model": "tiny", "stream": True, "max_tokens": request.output, "min_tokens": request.output, "ignore_eos": True,
        "messages": [{"role": "user", "content": words}],
    }).encode()
    priority = PRIORITIES.get(request.tenant)
    lines = [
        f"POST {url.path} HTTP/1.1", f"host: {url.netloc}", "content-type: application/json",
        f"x-gateway-inference-fairness-id: {request.tenant}", f"content-length: {len(body)}", "connection: close",
        *([f"x-penstock-priority: {priority}"] if priority else []), "", "",
    ]
    arrived, first, last, status = time.monotonic(), None, None, 0
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write("\r\n".join(lines).encode() + body)
        status = int((await reader.readline()).split()[1])
        while data := await reader.read(65536):
            if re.search(rb'"content":"[^"]', data):
                last = time.monotonic() - arrived
                first = first or last
        writer.close()
    except (OSError, IndexError):
        status = 0
    return Served(request, status, first, last)


async def run(url, requests):
    url, rng, began = urlparse(url), random.Random(3), time.monotonic() + 1
    return await asyncio.gather(*(send(url, request, began, rng) for request in requests))


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) * percent // 100, len(values) - 1)] if values else float("nan")


def jain(parts):
    return sum(parts) ** 2 / (len(parts) * sum(part * part for part in parts)) if any(parts) else float("nan")


def row(served, seconds, settling):
    """The figures of one cell: the first seconds don't count."""
    served = [one for one in served if one.request.at >= settling]
    span = seconds - settling
    good = [one for one in served if one.is_in_time()]
    tenants = {name for name, _ in SMALL}
    small = [one for one in served if one.request.tenant in tenants]
    firsts = [one.first for one in small if one.status == 200 and one.first is not None]
    tokens = sum(one.request.output for one in served if one.status == 200 and one.first is not None)
    greedy = [sum(one.request.output for one in served if one.request.tenant == name and one.status == 200)
              for name, _ in GREEDY[:2]]
    return {
        "good req/s": f"{len(good) / span:.2f}",
        "output tokens/s": f"{tokens / span:.0f}",
        "in time": f"{100 * len(good) / max(len(served), 1):.0f} %",
        "small, in time": f"{100 * sum(one.is_in_time() for one in small) / max(len(small), 1):.0f} %",
        "TTFT p50, p99": f"{percentile(firsts, 50):.2f}, {percentile(firsts, 99):.2f} s",
        "Jain, greedy": f"{jain(greedy):.3f}",
        "refused": f"{100 * sum(one.status != 200 for one in served) / max(len(served), 1):.0f} %",
    }
