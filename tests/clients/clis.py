"""Coding agents for the terminal. Each prompt is a process of its own, with a home of its own and no other settings of the user."""

import contextlib
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass

from model_server import ANSWER, CALL_TOOL

# An agent that hasn't ended by then waits for something that the test doesn't give it.
LIMIT = 30


@dataclass
class Outcome:
    """What the user of an agent sees. `ended` is False where the agent still waits when the time is up."""

    text: str
    ended: bool = True
    status: int | None = None


def run(command, environment, folder, limit):
    """Runs a command without the environment of the test."""
    os.makedirs(folder, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": folder} | environment
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, env=environment, cwd=folder, **options)
    try:
        return Outcome(process.communicate(timeout=limit)[0])
    except subprocess.TimeoutExpired:
        # The command is a script of Node, and the agent is its child.
        os.killpg(process.pid, signal.SIGKILL)
        return Outcome(process.communicate()[0], ended=False)


def version(command):
    return re.search(r"[\d.]+", subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout).group(0)


class Codex:
    name = "Codex CLI"
    flow = "codex"
    CONFIG = """
model_provider = "penstock"

[model_providers.penstock]
name = "Penstock"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "PENSTOCK_KEY"
http_headers = {{ "x-penstock-tenant" = "codex" }}
request_max_retries = 1
stream_max_retries = 1
{more}
"""

    def __init__(self, bed, programs):
        self._bed = bed
        self._codex = os.path.join(programs, "node_modules", ".bin", "codex")
        self.version = version(self._codex)

    def running(self):
        return contextlib.nullcontext()

    def ask(self, model, prompt="Say hello", more="", limit=LIMIT):
        home = os.path.join(self._bed.folder, "codex")
        os.makedirs(home, exist_ok=True)
        with open(os.path.join(home, "config.toml"), "w") as out:
            out.write(self.CONFIG.format(url=self._bed.url, more=more))
        # Without a sandbox, which containers often forbid: the model server asks for `echo` only.
        command = [self._codex, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--model", model, prompt]
        return run(command, {"CODEX_HOME": home, "PENSTOCK_KEY": "none"}, home, limit)

    def call_tool(self, model):
        return "done" if "The tool returned: from-the-shell" in self.ask(model, CALL_TOOL).text else "failed"

    def more(self):
        """A provider with `supports_websockets` begins with a WebSocket, and goes on with POST after the 426."""
        answered = ANSWER in self.ask("chat", more="supports_websockets = true").text
        statuses = [exchange.status for exchange in self._bed.recorder.exchanges() if exchange.headers.get("upgrade") == "websocket"]
        yield "WebSocket refused, then POST" if answered and statuses == [426] else f"WebSocket: {statuses}, answered: {answered}"

        # Its limit for a silent stream counts events, not comments.
        with self._bed.held("chat"):
            outcome = self.ask("chat", more="stream_idle_timeout_ms = 1000")
        yield "comments don't count for `stream_idle_timeout_ms`" if "idle timeout" in outcome.text else "waits longer than `stream_idle_timeout_ms`"


class ClaudeCode:
    name = "Claude Code"
    flow = "claude"

    def __init__(self, bed, programs):
        self._bed = bed
        self._claude = os.path.join(programs, "node_modules", ".bin", "claude")
        self.version = version(self._claude)

    def running(self):
        return contextlib.nullcontext()

    def ask(self, model, prompt="Say hello", limit=LIMIT):
        environment = {
            "ANTHROPIC_BASE_URL": self._bed.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_CUSTOM_HEADERS": "x-penstock-tenant: claude",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
        }
        folder = os.path.join(self._bed.folder, "claude")
        return run([self._claude, "--print", "--model", model, "--allowedTools=Bash", prompt], environment, folder, limit)

    def call_tool(self, model):
        return "done" if "The tool returned: from-the-shell" in self.ask(model, CALL_TOOL).text else "failed"

    def more(self):
        self.ask("chat", "/context")
        counted = [exchange.status for exchange in self._bed.recorder.exchanges() if "count_tokens" in exchange.target]
        yield "`/context` counts tokens" if counted and set(counted) == {200} else f"`/context`: {counted}"

        # The user's id is a text that holds JSON, with the session in it: a flow by it would be a flow for each session.
        sessions = {session for session in (self._session() for _ in range(2)) if session}
        yield "`metadata.user_id` differs by session" if len(sessions) == 2 else f"`metadata.user_id`: {sessions}"

    def _session(self):
        self._bed.recorder.forget()
        self.ask("chat")
        body = next(json.loads(exchange.body) for exchange in self._bed.recorder.exchanges() if exchange.method == "POST")
        return json.loads(body["metadata"]["user_id"]).get("session_id")
