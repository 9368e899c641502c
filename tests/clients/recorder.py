"""A TCP relay in front of the gateway that keeps the bytes of both directions, so that a test sees what a client really sent and got."""

import contextlib
import http.client
import io
import re
import socket
import threading
from dataclasses import dataclass


@dataclass
class Exchange:
    """A request and its answer as they were on the wire: bodies are still encoded."""

    method: str
    target: str
    headers: dict
    body: bytes
    status: int
    answer_headers: dict
    answer: bytes


class Recorder:
    """Relays connections from a free port of loopback to the address `to` from `with` to its end."""

    def __init__(self, to):
        host, port = to.rsplit(":", 1)
        self._to = (host, int(port))
        self._connections = []
        self._forgotten = set()
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sent, got = bytearray(), bytearray()
                with self._changed:
                    self._connections.append((sent, got))
                for source, sink, kept in ((client, server, sent), (server, client, got)):
                    threading.Thread(target=self._copy, args=(source, sink, kept), daemon=True).start()

    def _copy(self, source, sink, kept):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._changed:
                    kept.extend(data)
                    self._changed.notify_all()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def forget(self):
        """Begins anew: what was sent and got until now isn't part of `exchanges`. No request must be running."""
        self._forgotten |= self.seen()
        with self._changed:
            for sent, got in self._connections:
                sent.clear()
                got.clear()

    def wait_for(self, pattern, timeout):
        """Waits until an answer contains the bytes `pattern`. Returns whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: any(re.search(pattern, bytes(got)) for _, got in self._connections), timeout)

    def exchanges(self):
        """What the clients have sent and got since `forget`, by connection."""
        with self._changed:
            kept = [(bytes(sent), bytes(got)) for sent, got in self._connections]
        return [exchange for sent, got in kept for exchange in _parse(sent, got)]

    def seen(self):
        """The method and the target of every request, also of those that are forgotten."""
        return self._forgotten | {(exchange.method, exchange.target) for exchange in self.exchanges()}


class _Bytes:
    """What http.client needs of a socket."""

    def __init__(self, stream):
        self._stream = stream

    def makefile(self, *_):
        return self._stream


class _Unclosed(io.BytesIO):
    """The answers of a connection, which http.client would close after each."""

    def close(self):
        pass


def _parse(sent, got):
    requests, answers = io.BytesIO(sent), _Unclosed(got)
    while line := requests.readline().strip():
        method, target, _ = line.decode("latin-1").split(" ")
        headers = http.client.parse_headers(requests)
        body = _chunked(requests) if "chunked" in headers.get("transfer-encoding", "") else requests.read(int(headers.get("content-length") or 0))
        answer = http.client.HTTPResponse(_Bytes(answers), method=method)
        status, answer_headers, content = 0, {}, b""
        with contextlib.suppress(http.client.HTTPException):
            answer.begin()
            status, answer_headers = answer.status, _lower(answer.headers)
            try:
                content = answer.read()
            except http.client.IncompleteRead as cut:
                content = cut.partial
        yield Exchange(method, target, _lower(headers), body, status, answer_headers, content)


def _lower(headers):
    return {name.lower(): value for name, value in headers.items()}


def _chunked(stream):
    parts = []
    while size := int(stream.readline().split(b";")[0] or b"0", 16):
        parts.append(stream.read(size))
        stream.readline()
    stream.readline()
    return b"".join(parts)
