"""Servers between people and the gateway. Each is asked as its own clients ask it."""

import contextlib
import http.client
import json
import os
import re
import select
import subprocess
import urllib.error
import urllib.request
import uuid

from clis import LIMIT, Outcome
from model_server import ANSWER, CALL_TOOL
from processes import eventually, free_port, program


def send(url, body=None, headers=None, method=None):
    """The status, the headers and the text of an answer, whatever its status."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"} | (headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@contextlib.contextmanager
def server(command, environment, folder, health):
    """Runs a server on a free port, without the environment of the test, and waits until `health` answers. Returns its URL."""
    port = free_port()
    path = f"{os.path.dirname(command[0])}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": folder} | environment
    log = os.path.join(folder, "log")
    with open(log, "w") as out, program(*command, "--host", "127.0.0.1", "--port", str(port), env=environment, cwd=folder,
                                        stdout=out, stderr=out) as process:
        url = f"http://127.0.0.1:{port}"

        def is_up():
            if process.poll() is not None:
                with open(log) as text:
                    raise RuntimeError(f"{command[0]} has ended: {text.read()[-2000:]}")
            with contextlib.suppress(OSError):
                return send(url + health)[0] == 200

        eventually(is_up, 120)
        yield url


def version(programs, package):
    script = f"import importlib.metadata as m; print(m.version('{package}'))"
    return subprocess.run([os.path.join(programs, "bin", "python"), "-c", script], capture_output=True, text=True, check=True).stdout.strip()


class LiteLLM:
    name = "LiteLLM proxy"
    flow = "litellm"
    CONFIG = """
model_list:
- model_name: "*"
  litellm_params: {{model: "openai/*", api_base: "{url}/v1", api_key: none}}
- model_name: embeddings
  litellm_params: {{model: openai/chat, api_base: "{url}/v1", api_key: none}}
  model_info: {{mode: embedding}}
general_settings: {{forward_client_headers_to_llm_api: true}}
"""

    def __init__(self, bed, programs):
        self._bed = bed
        self._programs = os.path.join(programs, "litellm")
        self.version = version(self._programs, "litellm")

    @contextlib.contextmanager
    def running(self):
        folder = os.path.join(self._bed.folder, "litellm")
        os.makedirs(folder)
        config = os.path.join(folder, "config.yaml")
        with open(config, "w") as out:
            out.write(self.CONFIG.format(url=self._bed.url))
        key = f"sk-{uuid.uuid4().hex}"
        environment = {"LITELLM_MASTER_KEY": key, "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        command = [os.path.join(self._programs, "bin", "litellm"), "--config", config]
        with server(command, environment, folder, "/health/readiness") as self._url:
            self._headers = {"authorization": f"Bearer {key}", "x-penstock-tenant": self.flow}
            yield

    def _chat(self, model, messages, **more):
        body = {"model": model, "messages": messages, **more}
        return send(f"{self._url}/v1/chat/completions", body, self._headers)

    def ask(self, model, limit=LIMIT):
        status, _, text = self._chat(model, [{"role": "user", "content": "Say hello"}], stream=True)
        if status == 200:
            return Outcome(text)
        return Outcome(json.loads(text)["error"]["message"], status=status)

    def call_tool(self, model):
        tools = [{"type": "function", "function": {"name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]
        messages = [{"role": "user", "content": CALL_TOOL}]
        message = json.loads(self._chat(model, messages, tools=tools)[2])["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "from-the-shell"}
        text = self._chat(model, [*messages, message, result], tools=tools)[2]
        return "done" if "The tool returned: from-the-shell" in text else "failed"

    def more(self):
        status, _, text = send(f"{self._url}/v1/embeddings", {"model": "embeddings", "input": "hello"}, self._headers)
        yield "embeddings" if status == 200 and json.loads(text)["data"][0]["embedding"] else f"embeddings: {status}"
        for path in ("messages", "responses"):
            body = {"model": "chat", "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}], "input": "hello"}
            del body["input" if path == "messages" else "messages"]
            status, _, text = send(f"{self._url}/v1/{path}", body, self._headers)
            yield f"`/v1/{path}`" if ANSWER in text else f"`/v1/{path}`: {status}"
        yield "comments are passed on" if self._passes_comments() else "comments end here"
        with self._bed.held("full"):
            _, headers, _ = self._chat("full", [{"role": "user", "content": "hello"}])
        yield "`retry-after` is passed on" if headers.get("retry-after") else "`retry-after` becomes `llm_provider-retry-after`"

    def _passes_comments(self):
        """Whether the client has anything of a stream for which the proxy has got three comments."""
        client = http.client.HTTPConnection(self._url.removeprefix("http://"))
        self._bed.recorder.forget()
        with contextlib.closing(client), self._bed.held("chat"):
            body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
            client.request("POST", "/v1/chat/completions", json.dumps(body), self._headers | {"content-type": "application/json"})
            self._bed.recorder.wait_for(rb"(?s)(: waiting.*){3}", 20)
            return bool(select.select([client.sock], [], [], 0)[0])


class OpenWebUI:
    name = "Open WebUI"

    def __init__(self, bed, programs):
        self._bed = bed
        self._programs = os.path.join(programs, "open-webui")
        self.version = version(self._programs, "open-webui")

    @contextlib.contextmanager
    def running(self):
        folder = os.path.join(self._bed.folder, "open-webui")
        os.makedirs(folder)
        environment = {
            "DATA_DIR": os.path.join(folder, "data"),
            "WEBUI_SECRET_KEY": uuid.uuid4().hex,
            "OPENAI_API_BASE_URL": f"{self._bed.url}/v1",
            "OPENAI_API_KEY": "none",
            "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
            "ENABLE_OLLAMA_API": "false",
            # The variant without local models for documents, which need gigabytes of libraries.
            "USE_SLIM_DOCKER": "true",
            "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
            "OFFLINE_MODE": "true",
        }
        command = [os.path.join(self._programs, "bin", "open-webui"), "serve"]
        with server(command, environment, folder, "/health") as self._url:
            account = {"name": "Ada", "email": "ada@example.com", "password": uuid.uuid4().hex}
            user = json.loads(send(f"{self._url}/api/v1/auths/signup", account)[2])
            self._token = {"authorization": f"Bearer {user['token']}"}
            self.flow = user["id"]
            send(f"{self._url}/api/models", headers=self._token)
            yield

    def _post(self, path, body):
        status, _, text = send(self._url + path, body, self._token)
        return status, json.loads(text)

    def _begin(self, model, prompt="Say hello", tasks=()):
        """Writes a message as the page does: the answer arrives in the chat. Returns the chat, the message and the task."""
        question, answer = str(uuid.uuid4()), str(uuid.uuid4())
        messages = {
            question: {"id": question, "parentId": None, "childrenIds": [answer], "role": "user", "content": prompt, "models": [model]},
            answer: {"id": answer, "parentId": question, "childrenIds": [], "role": "assistant", "content": "", "model": model},
        }
        chat = {"title": "New Chat", "models": [model], "messages": [], "history": {"messages": messages, "currentId": answer}}
        _, created = self._post("/api/v1/chats/new", {"chat": chat})
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}], "chat_id": created["id"], "id": answer,
                "parent_id": question, "session_id": "none", "params": {}, "features": {}, "background_tasks": {task: True for task in tasks}}
        status, begun = self._post("/api/chat/completions", body)
        return (created["id"], answer, begun["task_ids"][0]) if status == 200 else Outcome(begun["detail"], status=status)

    def _message(self, chat, message):
        found = json.loads(send(f"{self._url}/api/v1/chats/{chat}", headers=self._token)[2])["chat"]["history"]["messages"][message]
        return found if found.get("done") else None

    def ask(self, model, prompt="Say hello", limit=LIMIT):
        begun = self._begin(model, prompt)
        if isinstance(begun, Outcome):
            return begun
        chat, message, _ = begun
        done = eventually(lambda: self._message(chat, message), limit)
        return Outcome(done.get("content", "") + json.dumps(done.get("error") or "", ensure_ascii=False))

    def call_tool(self, model):
        """One of its own tools, because it offers no shell: it returns the time."""
        return "done" if re.search(r"The tool returned: .*\d{10}", self.ask(model, CALL_TOOL).text, re.DOTALL) else "failed"

    def more(self):
        recorder = self._bed.recorder
        recorder.forget()
        self._begin("chat", tasks=("title_generation", "tags_generation", "follow_up_generation"))
        asked = lambda word: any(word in exchange.body and exchange.status == 200 for exchange in recorder.exchanges())  # noqa: E731
        eventually(lambda: asked(b"concise title") and asked(b"broad tags") and asked(b"next to advance"))
        yield "title, tags and follow-ups"

        recorder.forget()
        with self._bed.held("chat"):
            _, _, task = self._begin("chat")
            recorder.wait_for(rb": waiting", 20)
            self._post(f"/api/tasks/stop/{task}", {})
            eventually(lambda: self._bed.waiting("chat") == 0)
        yield "stop leaves the queue"
