"""Runs the libraries of Python and Node against a gateway with simulated servers, and prints what each of them met as a table.

Each library does what an application does, and a result is the value that it returned or the error that it raised. Fails if one is not what
docs/clients.md says.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

from processes import line, program

PENSTOCK = os.environ["PENSTOCK"]
FOLDER = sys.argv[1]

CONFIG = """
listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}
pools:
- name: chat
  models: [chat]
  endpoints: {{static: ['{chat}']}}
  stock: &one {{lower_bound_per_backend: 1, upper_bound_per_backend: 1, watermark_per_backend: 1, extra_for_idle_flows: 0}}
  queue: {{keep_alive: 300ms, ttl: 60s}}
- name: impatient
  models: [impatient]
  endpoints: {{static: ['{impatient}']}}
  stock: *one
  queue: {{keep_alive: 300ms, ttl: 1s}}
- name: limited
  models: [limited]
  endpoints: {{static: ['{limited}']}}
  arbitration: {{flows: {{budgets: [{{match: "*", windows: [{{tokens: 1, per: day}}], over: refuse}}]}}}}
- name: full
  models: [full]
  endpoints: {{static: ['{full}']}}
  stock: *one
  queue: {{enabled: false}}
"""

# What an application does, and what it must meet.
EXPECTED = {
    "answer": "text",
    "stream": "text",
    "kept alive": "text",
    "refused while kept alive": "error in the stream",
    "budget of a day": "429 at once",
    "full": "503",
    "unknown model": "404",
    "models": "names",
    "embedding": "vector",
    "count of tokens": "number",
}


@contextlib.contextmanager
def gateway():
    with contextlib.ExitStack() as stack:
        servers = {}
        for pool in ("chat", "impatient", "limited", "full"):
            # An iteration takes 100 ms, so a request of 60 tokens holds the only place for six seconds.
            server = stack.enter_context(program(PENSTOCK, "mock-server", "--port", "0", "--alpha", "100", "--model", pool))
            servers[pool] = line(server, r"http://(\S+)")
        file = os.path.join(FOLDER, "penstock.yaml")
        with open(file, "w") as out:
            out.write(CONFIG.format(**servers))
        up = stack.enter_context(program(PENSTOCK, "up", "--config", file))
        yield line(up, r"gateway (http://\S+)")


def occupy(base, model, tokens):
    """Takes the only place of a pool, in the background."""
    body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hold the place"}]}
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})

    def ask():
        with contextlib.suppress(Exception):
            urllib.request.urlopen(request).read()

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    return thread


def attempt(action):
    """What an application meets: the kind of its result, or the status of the error."""
    began = time.monotonic()
    try:
        result = action()
        return result if isinstance(result, str) else kind(result)
    except Exception as error:  # noqa: BLE001, every library has errors of its own
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if isinstance(status, int) and status >= 400:
            waited = time.monotonic() - began
            return f"{status} at once" if status == 429 and waited < 5 else str(status)
        return f"{type(error).__name__}"


def kind(value):
    return "number" if isinstance(value, int) else "nothing"


def text(value):
    return "text" if value and value.strip() else "no text"


def in_stream(action):
    """An error that a library raises inside a stream has no status, or that of the stream."""
    try:
        got = action()
    except Exception as error:  # noqa: BLE001
        return "error in the stream" if "timed out" in str(error) else f"{type(error).__name__}: {error}"
    return f"no error, {got}"


def openai(base):
    from openai import OpenAI

    client = OpenAI(base_url=base + "/v1", api_key="none")
    once = client.with_options(max_retries=0)
    ask = [{"role": "user", "content": "hello"}]

    def stream(model):
        pieces = client.chat.completions.create(model=model, messages=ask, max_tokens=4, stream=True)
        return text("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices))

    def chat(client, model):
        return text(client.chat.completions.create(model=model, messages=ask, max_tokens=4).choices[0].message.content)

    return {
        "answer": lambda: chat(client, "chat"),
        "stream": lambda: stream("chat"),
        "kept alive": lambda: stream("chat"),
        "refused while kept alive": lambda: stream("impatient"),
        "budget of a day": lambda: chat(client, "limited"),
        "full": lambda: chat(once, "full"),
        "unknown model": lambda: chat(client, "nowhere"),
        "models": lambda: "names" if [model.id for model in client.models.list()] else "none",
        "embedding": lambda: "vector" if client.embeddings.create(model="chat", input="hello").data[0].embedding else "none",
    }


def anthropic(base):
    from anthropic import Anthropic

    client = Anthropic(base_url=base, api_key="none")
    once = client.with_options(max_retries=0)
    ask = {"max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}

    def stream(model):
        with client.messages.stream(model=model, **ask) as pieces:
            return text("".join(pieces.text_stream))

    def chat(client, model):
        return text(client.messages.create(model=model, **ask).content[0].text)

    return {
        "answer": lambda: chat(client, "chat"),
        "stream": lambda: stream("chat"),
        "kept alive": lambda: stream("chat"),
        "refused while kept alive": lambda: stream("impatient"),
        "budget of a day": lambda: chat(client, "limited"),
        "full": lambda: chat(once, "full"),
        "unknown model": lambda: chat(client, "nowhere"),
        "count of tokens": lambda: client.messages.count_tokens(model="chat", messages=ask["messages"]).input_tokens,
    }


def litellm(base):
    import litellm

    litellm.suppress_debug_info = True
    ask = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "api_base": base + "/v1", "api_key": "none"}

    def stream(model):
        pieces = litellm.completion(model=f"openai/{model}", stream=True, **ask)
        return text("".join(piece.choices[0].delta.content or "" for piece in pieces))

    def chat(model, **more):
        return text(litellm.completion(model=f"openai/{model}", **ask, **more).choices[0].message.content)

    return {
        "answer": lambda: chat("chat"),
        "stream": lambda: stream("chat"),
        "kept alive": lambda: stream("chat"),
        "refused while kept alive": lambda: stream("impatient"),
        "budget of a day": lambda: chat("limited"),
        "full": lambda: chat("full", num_retries=0),
        "unknown model": lambda: chat("nowhere"),
    }


def langchain(base, make, full):
    def stream(model):
        return text("".join(piece.text for piece in make(model).stream("hello")))

    def chat(model):
        return text(model.invoke("hello").text)

    return {
        "answer": lambda: chat(make("chat")),
        "stream": lambda: stream("chat"),
        "kept alive": lambda: stream("chat"),
        "refused while kept alive": lambda: stream("impatient"),
        "budget of a day": lambda: chat(make("limited")),
        "full": lambda: chat(full),
        "unknown model": lambda: chat(make("nowhere")),
    }


def langchain_openai(base):
    from langchain_openai import ChatOpenAI

    def make(model, **more):
        return ChatOpenAI(model=model, base_url=base + "/v1", api_key="none", max_tokens=4, **more)

    return langchain(base, make, make("full", max_retries=0))


def langchain_anthropic(base):
    from langchain_anthropic import ChatAnthropic

    def make(model, **more):
        return ChatAnthropic(model=model, base_url=base, api_key="none", max_tokens=4, **more)

    return langchain(base, make, make("full", max_retries=0))


LIBRARIES = [openai, anthropic, litellm, langchain_openai, langchain_anthropic]
# What must hold the only place meanwhile: the pool, and for how many tokens.
HELD = {"kept alive": ("chat", 15), "refused while kept alive": ("impatient", 25), "full": ("full", 20)}


def measured(base, name, action):
    """Runs an action while its pool's place is held, if it needs that."""
    holder = occupy(base, *HELD[name]) if name in HELD else None
    result = in_stream(action) if name == "refused while kept alive" else attempt(action)
    if holder:
        holder.join()
    return result


def node(base, table):
    """The libraries of Node, which a script runs one action at a time."""
    process = subprocess.Popen(
        ["node", os.path.join(FOLDER, "libraries.mjs"), base], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    actions = json.loads(process.stdout.readline())

    def ask(library, name):
        process.stdin.write(json.dumps([library, name]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    for library, names in actions.items():
        for name in names:
            holder = occupy(base, *HELD[name]) if name in HELD else None
            table.setdefault(library, {})[name] = ask(library, name)
            if holder:
                holder.join()
    process.stdin.close()
    process.wait()


def main():
    table = {}
    with gateway() as base:
        # Uses the budget up.
        occupy(base, "limited", 1).join()
        for library in LIBRARIES:
            name = f"{library.__name__.replace('_', '-')} (Python)"
            for action, run in library(base).items():
                table.setdefault(name, {})[action] = measured(base, action, run)
        node(base, table)
    print("| library | " + " | ".join(EXPECTED) + " |")
    print("|---" * (len(EXPECTED) + 1) + "|")
    wrong = []
    for library, results in table.items():
        print(f"| {library} | " + " | ".join(results.get(name, "") for name in EXPECTED) + " |")
        wrong += [f"{library}, {name}: {result}" for name, result in results.items() if result != EXPECTED[name]]
    for text in wrong:
        print(f"not as expected: {text}", file=sys.stderr)
    sys.exit(bool(wrong))


main()
