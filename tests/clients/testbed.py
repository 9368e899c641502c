"""What all agents are tried against: a gateway with a pool for each thing that a client may meet, and a recorder in front of it."""

import contextlib
import json
import os
import threading
import urllib.request

from model_server import HOLD, ModelServer
from processes import line, program
from recorder import Recorder

# The model of a request chooses the pool. Every server of a pool with `stock: one` runs one request at a time.
CONFIG = """
listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}
identity:
  fairness_id: [{{header: x-penstock-tenant}}, {{header: x-openwebui-user-id}}]
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
- name: silent
  models: [silent]
  endpoints: {{static: ['{silent}']}}
  stock: *one
  queue: {{ttl: 1s}}
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
POOLS = ("chat", "impatient", "silent", "limited", "full")


class Testbed:
    """Runs from `with` to its end. Agents send to `url`; `gateway` is the same without the recorder."""

    def __init__(self, penstock, folder):
        self._penstock = penstock
        self.folder = folder

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._servers = {pool: stack.enter_context(ModelServer()) for pool in POOLS}
            file = os.path.join(self.folder, "penstock.yaml")
            with open(file, "w") as out:
                out.write(CONFIG.format(**{pool: server.address for pool, server in self._servers.items()}))
            up = stack.enter_context(program(self._penstock, "up", "--config", file))
            self.gateway = line(up, r"gateway (http://\S+)")
            self._admin = line(up, r"metrics (http://[^/]+)")
            self.recorder = stack.enter_context(Recorder(self.gateway.removeprefix("http://")))
            self.url = f"http://{self.recorder.address}"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    @contextlib.contextmanager
    def held(self, pool, until=None):
        """Takes the only place of a pool, to the end of the block, or until an answer of the gateway has the bytes `until`."""
        body = {"model": pool, "messages": [{"role": "user", "content": HOLD}]}
        request = urllib.request.Request(f"{self.gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        holder = threading.Thread(target=lambda: urllib.request.urlopen(request).read(), daemon=True)
        holder.start()
        release = self._servers[pool].holder()
        if until:
            threading.Thread(target=lambda: (self.recorder.wait_for(until, 30), release()), daemon=True).start()
        try:
            yield
        finally:
            release()
            holder.join()

    def _page(self, path):
        return json.load(urllib.request.urlopen(self._admin + path))

    def waiting(self, pool):
        return next(entry["waiting"] for entry in self._page("/status")["pools"] if entry["name"] == pool)

    def flows(self):
        """The flows that have used some of the budget of the pool `limited`."""
        return [budget["flow"] for budget in self._page("/budgets")]
