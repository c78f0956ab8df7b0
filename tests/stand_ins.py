"""`paceline serve` as a real process, over small stand-ins for the three services.

The stand-ins listen, answer their readiness probes and write down what they were told; they are
found before the real ones because their folder comes first on PYTHONPATH.
"""

import json
from pathlib import Path
from typing import Any

from serve_process import ServeProcess

NOTE = """
import json, os, pathlib, signal, sys, time
KEPT = ("PACELINE_", "OMP_", "RANK", "WORLD_", "LOCAL_", "MASTER_")
notes = pathlib.Path(os.environ["NOTES"])
def stopped(number, frame):
    (notes / f"{NAME}.stopped").write_text(str(time.monotonic()))
    os._exit(0)
signal.signal(signal.SIGTERM, stopped)
own = {key: text for key, text in os.environ.items() if key.startswith(KEPT)}
(notes / f"{NAME}.settings").write_text(json.dumps(own | {"pid": os.getpid()}))
"""

WORKER = """
import concurrent.futures, grpc
from grpc_health.v1 import health, health_pb2_grpc
if os.environ.get("PACELINE_MODEL") == "/missing":
    sys.exit("the model '/missing' does not exist")
server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(servicer := health.HealthServicer(), server)
server.add_insecure_port(f"127.0.0.1:{os.environ['PACELINE_PORT']}")
server.start()
servicer.set(f"paceline.v1.{NAME}", 1)
while True:
    time.sleep(60)
"""

COORDINATOR = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "tiny"}]}')
port = int(os.environ["PACELINE_HTTP_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

STRANGER = """
import socket
for name in os.environ:
    if not name.startswith("PACELINE_") or not name.endswith("_PORT"):
        continue
    with socket.socket() as stranger:
        try:
            stranger.bind(("127.0.0.1", int(os.environ[name])))
        except OSError:
            continue
        sys.exit(f"anybody is given {name}")
"""

DEAF = "signal.signal(signal.SIGTERM, lambda number, frame: None)"

RANK = f"""
import os
NAME = os.environ["PACELINE_PORT"] + "-" + os.environ["RANK"]
{NOTE}
while os.environ["RANK"] != "0":
    time.sleep(60)
NAME = "TargetService"
{WORKER}
"""

STAND_INS = {
    "target_service": f"NAME = 'TargetService'{NOTE}{WORKER}",
    "draft_service": f"NAME = 'DraftService'{NOTE}{WORKER}",
    "coordinator": f"NAME = 'coordinator'{NOTE}{COORDINATOR}",
}


class Served(ServeProcess):
    """A running `paceline serve` over stand-ins."""

    def __init__(
        self, tmp_path: Path, stand_ins: dict[str, str], *options: str, command: str = "serve"
    ) -> None:
        self.notes = tmp_path / "notes"
        self.notes.mkdir()
        for package, code in (STAND_INS | stand_ins).items():
            folder = tmp_path / "stand_ins" / package
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            (folder / "__main__.py").write_text(code)
        environment = {"PYTHONPATH": str(tmp_path / "stand_ins"), "NOTES": str(self.notes)}
        super().__init__(*options, run_folder=tmp_path, environment=environment, command=command)

    def told(self, name: str) -> dict[str, Any]:
        """The settings that a stand-in found in its environment, and its `pid`."""
        found: dict[str, Any] = json.loads((self.notes / f"{name}.settings").read_text())
        return found

    def stopped_at(self, name: str) -> float:
        """When a stand-in was told to stop."""
        return float((self.notes / f"{name}.stopped").read_text())

    def all_pids(self) -> list[int]:
        """The processes of all stand-ins that were started."""
        return [self.told(path.stem)["pid"] for path in self.notes.glob("*.settings")]
