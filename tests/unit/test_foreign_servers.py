"""What the command line says when something else than a coordinator answers at --url."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_coordinator import STATUS

from paceline.cli.api import Answer, ApiError, CoordinatorApi


class Server(ThreadingHTTPServer):
    """Says to everybody the same."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.said = b""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.said)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()


Ask = Callable[[bytes], CoordinatorApi]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def api_that_hears(server: Server) -> Iterator[Ask]:
    with CoordinatorApi(f"http://127.0.0.1:{server.server_port}") as api:

        def hear(said: bytes) -> CoordinatorApi:
            server.said = said
            return api

        yield hear


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"<html>", "its /status is no JSON object"),
        (b"[]", "its /status is no JSON object"),
        (b"{}", "its /status has no 'ready'"),
        (b'{"ready": true, "model": "m"}', "its /status has no 'workers'"),
    ],
)
def test_a_status_that_is_none_is_refused(api_that_hears: Ask, said: bytes, expected: str) -> None:
    with pytest.raises(ApiError, match=f"does not answer as Paceline's coordinator.*{expected}"):
        api_that_hears(said).status()
    assert api_that_hears(json.dumps(STATUS).encode()).status() == STATUS


@pytest.mark.parametrize("said", [b"data: {no\n\n", b'data: {"choices": 5}\n\n', b"data: []\n\n"])
def test_events_that_are_none_are_refused(api_that_hears: Ask, said: bytes) -> None:
    with pytest.raises(
        ApiError, match="does not answer as Paceline's coordinator does: its answer"
    ):
        api_that_hears(said).stream("/v1/completions", {}, print, Answer())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_spell_is_named(api_that_hears: Ask, value: float) -> None:
    with pytest.raises(ApiError, match="^temperature is (nan|inf), expected a finite number"):
        api_that_hears(b"").stream("/v1/completions", {"temperature": value}, print, Answer())
