"""Runs coding agents and servers of chats against a gateway, and prints what the user of each of them meets as a table.

    agents.py PROGRAMS [NAME...]

PROGRAMS is the folder in which `run` has installed them; with names, only these run. Fails if a row isn't in docs/clients.md as it is printed.
"""

import json
import os
import re
import sys
import tempfile

from clis import LIMIT, ClaudeCode, Codex
from model_server import ANSWER
from servers import LiteLLM, OpenWebUI
from testbed import Testbed

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "clients.md")
COLUMNS = ["agent", "version", "answer", "call of a tool", "kept alive", "refused while kept alive", "budget of a day is used up", "`ttl` is over",
           "no room, no queue", "unknown model", "requests", "more"]
# An agent that sleeps until a budget has room sleeps for days.
BUDGET_LIMIT = 8


def answer(agent, model):
    return "text" if ANSWER in agent.ask(model).text else "no text"


def refusal(agent, bed, model, limit=LIMIT):
    """Whether the user sees the gateway's message, with which status, and after how many requests."""
    bed.recorder.forget()
    outcome = agent.ask(model, limit=limit)
    asked = [exchange for exchange in bed.recorder.exchanges() if exchange.method == "POST"]
    tries = "1 try" if len(asked) == 1 else f"{len(asked)} tries"
    if not outcome.ended:
        return f"waits, after {tries}"
    seen = "message" if asked and message(asked[-1].answer) in outcome.text else "own message"
    return ", ".join([*([str(outcome.status)] if outcome.status else []), seen, tries])


def message(error):
    """What an error says, in the form of any API, as an answer or in a stream."""
    return json.loads(re.search(rb'"message":("(?:[^"\\]|\\.)*")', error).group(1))


def cells(agent, bed):
    yield agent.name
    yield agent.version
    yield answer(agent, "chat")
    yield agent.call_tool("chat")
    bed.recorder.forget()
    with bed.held("chat", until=rb": waiting"):
        yield answer(agent, "chat")
    with bed.held("impatient"):
        yield refusal(agent, bed, "impatient")
    agent.ask("limited")
    if agent.flow not in bed.flows():
        raise RuntimeError(f"{agent.name} isn't the flow {agent.flow}: {bed.flows()}")
    yield refusal(agent, bed, "limited", BUDGET_LIMIT)
    with bed.held("silent"):
        yield refusal(agent, bed, "silent")
    with bed.held("full"):
        yield refusal(agent, bed, "full")
    yield refusal(agent, bed, "nowhere")


def row(agent, bed):
    """All cells of an agent. `more` is before `requests`, because what it asks for counts there."""
    found = list(cells(agent, bed))
    more = ", ".join(agent.more())
    requests = sorted({f"`{method} {target}`" for method, target in bed.recorder.seen()})
    return "| " + " | ".join([*found, ", ".join(requests), more]) + " |"


def main():
    programs, names = sys.argv[1], sys.argv[2:]
    with open(PAGE) as page:
        documented = set(page.read().splitlines())
    wrong = []
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    print("\n".join(lines))
    for kind in (Codex, ClaudeCode, LiteLLM, OpenWebUI):
        if names and kind.name not in names:
            continue
        # A gateway for each, so that no agent meets what another has left. Codex refuses a home under /tmp.
        with tempfile.TemporaryDirectory(dir=programs) as folder, Testbed(os.environ["PENSTOCK"], folder) as bed:
            agent = kind(bed, programs)
            with agent.running():
                lines.append(row(agent, bed))
        print(lines[-1], flush=True)
    for text in lines:
        if text not in documented:
            print(f"not in docs/clients.md: {text}", file=sys.stderr)
            wrong.append(text)
    sys.exit(bool(wrong))


main()
