"""A model server with a script, for agents: it answers the three APIs that they speak with a fixed text, or with the call of a tool.

- The prompt `CALL_TOOL` gets a call of a tool that the client offers, and the result of the tool gets a text that quotes it.
- The prompt `hold` gets its answer when the test releases it. Until then it keeps its place at the server.
- All other prompts get ANSWER.

`ModelServer.requests` has every request as it arrived from the gateway.
"""

import contextlib
import json
import queue
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = "Water finds its level."
CALL_TOOL = "Call the tool that prints from-the-shell"
HOLD = "hold"
USAGE = {"chat": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15},
         "responses": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 6,
                       "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15},
         "messages": {"input_tokens": 9, "output_tokens": 6}}

# The tools that are called, by the names that agents give them, with the arguments of the call.
TOOLS = {
    "Bash": {"command": "echo from-the-shell", "description": "Print a word"},
    "exec_command": {"cmd": "echo from-the-shell"},
    "get_current_timestamp": {},
}


@dataclass
class Request:
    method: str
    target: str
    headers: dict
    body: object


class ModelServer:
    """Serves on a free port of loopback from `with` to its end."""

    def __init__(self):
        self.requests = []
        self._holders = queue.SimpleQueue()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()

    def holder(self, timeout=10):
        """Waits for a request that holds its place, and returns what releases it."""
        return self._holders.get(timeout=timeout).set

    def hold(self):
        """Keeps the handler of a request until it is released."""
        released = threading.Event()
        self._holders.put(released)
        released.wait(120)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: ModelServer

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._record(None)
        if self.path.split("?")[0] == "/v1/models":
            return self._json({"object": "list", "data": []})
        if self.path == "/health":
            return self._json({})
        self._json({"error": {"message": "not found"}}, 404)

    def do_HEAD(self):
        self._record(None)
        self._json({}, 404)

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length) if length else self._chunked()
        try:
            body = json.loads(raw)
        except ValueError:
            body = raw
        self._record(body)
        path = self.path.split("?")[0]
        api = {"/v1/chat/completions": Chat, "/v1/responses": Responses, "/v1/messages": Messages}.get(path)
        if path == "/v1/messages/count_tokens":
            return self._json({"input_tokens": 9})
        if path == "/v1/embeddings":
            return self._json({"object": "list", "model": body["model"], "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}],
                               "usage": {"prompt_tokens": 2, "total_tokens": 2}})
        if api is None:
            return self._json({"error": {"message": "not found"}}, 404)
        if last_text(body) == HOLD:
            self.server_of.hold()
        reply = api(body)
        events = reply.events()
        if not body.get("stream"):
            return self._json(reply.whole())
        self._events(events)

    def _record(self, body):
        self.server_of.requests.append(Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))

    def _chunked(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return b""
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _events(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for name, data in events:
                text = data if isinstance(data, str) else json.dumps(data)
                line = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
                self.wfile.write(f"{len(line.encode()):x}\r\n{line}\r\n".encode())
            self.wfile.write(b"0\r\n\r\n")


def texts(value):
    """Every text of a prompt, in order, wherever its API puts it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key in ("content", "text", "output"):
            if key in value:
                yield from texts(value[key])


def turns(body):
    turns = body.get("messages") or body.get("input") or []
    return turns if isinstance(turns, list) else [{"role": "user", "content": turns}]


def last_text(body):
    return (list(texts(turns(body))) or [""])[-1]


def tool_result(body):
    """What the client's tool printed, if the last turn has it."""
    for turn in turns(body)[-1:]:
        if turn.get("type", "").endswith("_call_output") or turn.get("role") == "tool":
            return "\n".join(texts(turn))
        blocks = turn.get("content")
        for block in blocks if isinstance(blocks, list) else []:
            if block.get("type") == "tool_result":
                return "\n".join(texts(block))
    return None


def tool_call(body):
    """The name and the arguments of a tool that the client offers, if the prompt asks for it."""
    names = {tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools") or []}
    if any(CALL_TOOL in text for text in texts(turns(body))):
        return next(((name, arguments) for name, arguments in TOOLS.items() if name in names), None)
    return None


class Reply:
    """A text, or the call of a tool. Subclasses write it in their API, whole or as events."""

    def __init__(self, body):
        self.model = body["model"]
        printed = tool_result(body)
        self.call = None if printed is not None else tool_call(body)
        # Some agents put what they measured before the output.
        self.text = ANSWER if printed is None else f"The tool returned: {printed.strip().splitlines()[-1]}"


class Chat(Reply):
    def _message(self):
        if self.call:
            name, arguments = self.call
            return {"role": "assistant", "content": None, "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]}
        return {"role": "assistant", "content": self.text}

    def whole(self):
        choice = {"index": 0, "message": self._message(), "finish_reason": "tool_calls" if self.call else "stop"}
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": self.model, "choices": [choice], "usage": USAGE["chat"]}

    def events(self):
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": self.model}
        yield None, base | {"choices": [{"index": 0, "delta": self._message(), "finish_reason": None}]}
        yield None, base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if self.call else "stop"}]}
        yield None, base | {"choices": [], "usage": USAGE["chat"]}
        yield None, "[DONE]"


class Responses(Reply):
    def _item(self):
        if self.call:
            name, arguments = self.call
            return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": json.dumps(arguments), "status": "completed"}
        return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": self.text, "annotations": []}]}

    def whole(self):
        return {"id": "resp_1", "object": "response", "created_at": 0, "status": "completed", "model": self.model, "error": None,
                "output": [self._item()], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": USAGE["responses"]}

    def events(self):
        item = self._item()
        begun = self.whole() | {"status": "in_progress", "output": [], "usage": None}
        rest = [("response.created", {"response": begun}),
                ("response.output_item.added", {"output_index": 0, "item": item | {"status": "in_progress"} | ({} if self.call else {"content": []})})]
        if not self.call:
            at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            rest += [("response.content_part.added", at | {"part": {"type": "output_text", "text": "", "annotations": []}}),
                     ("response.output_text.delta", at | {"delta": self.text}),
                     ("response.output_text.done", at | {"text": self.text}),
                     ("response.content_part.done", at | {"part": item["content"][0]})]
        rest += [("response.output_item.done", {"output_index": 0, "item": item}), ("response.completed", {"response": self.whole()})]
        for number, (name, data) in enumerate(rest):
            yield name, {"type": name, "sequence_number": number} | data


class Messages(Reply):
    def _block(self):
        if self.call:
            name, arguments = self.call
            return {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}
        return {"type": "text", "text": self.text}

    def whole(self):
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": self.model, "content": [self._block()],
                "stop_reason": "tool_use" if self.call else "end_turn", "stop_sequence": None, "usage": USAGE["messages"]}

    def events(self):
        begun = self.whole() | {"content": [], "stop_reason": None}
        yield "message_start", {"type": "message_start", "message": begun}
        block = self._block()
        empty = block | ({"input": {}} if self.call else {"text": ""})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])} if self.call else {"type": "text_delta", "text": self.text}
        yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        yield "message_delta", {"type": "message_delta", "delta": {"stop_reason": self.whole()["stop_reason"], "stop_sequence": None},
                                "usage": {"output_tokens": 6}}
        yield "message_stop", {"type": "message_stop"}
