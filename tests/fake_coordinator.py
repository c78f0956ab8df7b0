"""A small HTTP server that speaks the coordinator's API, for tests of its clients."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SPECULATION = {
    "num_target_passes": 2,
    "num_committed_tokens": 3,
    "tokens_per_target_pass": 1.5,
    "num_spec_steps": 1,
    "num_draft_tokens": 4,
    "num_accepted_draft_tokens": 1,
    "acceptance_histogram": [0, 1, 0, 0, 0],
    "num_proposed_tokens": 5,
    "draft_compute_ms": 2.0,
    "draft_failures": {"unknown_token": 2},
}
STATUS: dict[str, Any] = {
    "ready": True,
    "reason": "",
    "model": "tiny",
    "workers": [
        {
            "address": "127.0.0.1:7",
            "role": "draft",
            "ready": False,
            "reason": "no answer",
            "model": "some-head",
            "drafter": "suffix",
            "num_sequences": 3,
            "numerics": "",
            "varies_with_width": False,
            "num_parameters": 5_800_000,
            "sent_bytes": 0,
            "received_bytes": 0,
        }
    ],
    "num_running": 1,
    "stats": SPECULATION,
    "session_store": "memory",
}


class FakeCoordinator(ThreadingHTTPServer):
    """Answers every prompt with the pieces it was given; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces: list[tuple[str, list[int]]] = [("Hel", [1]), ("lo", [2, 3])]
        self.plain_pieces = self.pieces
        self.plain_reason = "stop"
        self.is_complete = True
        self.num_stalls = 0
        """So many answers wait behind the last piece until the client goes."""
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        """Of all requests, in order."""
        self.drafter = "suffix"
        self.speculation: dict[str, Any] = SPECULATION

    def status(self) -> dict[str, Any]:
        """Each answer so far took 90 bytes to the draft and 30 back."""
        (worker,) = STATUS["workers"]
        sent, received = 90 * len(self.bodies), 30 * len(self.bodies)
        changed = {"drafter": self.drafter, "sent_bytes": sent, "received_bytes": received}
        return {**STATUS, "workers": [{**worker, **changed}]}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_fake_coordinator() -> Iterator[FakeCoordinator]:
    """One that answers while the context lasts."""
    with FakeCoordinator() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: FakeCoordinator

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers["authorization"])
        documents: dict[str, dict[str, Any]] = {
            "/v1/models": {"data": [{"id": "tiny"}]},
            "/status": self.server.status(),
        }
        self._send_json(200, documents[self.path])

    def do_POST(self) -> None:
        self.server.authorizations.append(self.headers["authorization"])
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if body["max_tokens"] == 13:
            self._send_json(400, {"error": {"message": "max_tokens is 13, expected luck"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        is_off = (body.get("speculation") or {}).get("method") == "off"
        for text, ids in self.server.plain_pieces if is_off else self.server.pieces:
            choice = {"delta": {"content": text}, "text": text, "token_ids": ids}
            self._send_event({"choices": [choice]})
        if self.server.num_stalls:
            self.server.num_stalls -= 1
            self.rfile.read(1)
            return
        if not self.server.is_complete:
            return
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        reason = self.server.plain_reason if is_off else "stop"
        self._send_event({"choices": [{"delta": {}, "finish_reason": reason}]})
        metrics = {"speculative_decoding": self.server.speculation}
        self._send_event({"choices": [], "usage": usage, "metrics": metrics})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_event(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"id: 1\ndata: {json.dumps(event)}\n\n".encode())

    def _send_json(self, status: int, document: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())
