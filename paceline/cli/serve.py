"""`paceline serve`: the whole service on this machine, until it is told to stop."""

import json
import time

from paceline.cli import options, terminal
from paceline.cli.api import ApiError, CoordinatorApi
from paceline.cli.local_service import DRAIN_S, LocalService, local_service

CHECK_INTERVAL_S = 0.2


@options.with_server_options()
def serve(server: options.ServerOptions) -> None:
    """Start Redis, target, draft and coordinator on this machine; Ctrl-C stops them."""
    try:
        with local_service(server.read(), terminal.messages) as service:
            _run(service)
    except (KeyboardInterrupt, SystemExit):
        pass  # Told to stop before it was ready, or a second time while it stopped.
    terminal.say("Stopped.")


def _run(service: LocalService) -> None:
    """Return when told to stop, which is the usual way to end it and so not a failure."""
    try:
        _print_addresses(_model(service), service)
        while True:
            time.sleep(CHECK_INTERVAL_S)
            service.check()
    except (KeyboardInterrupt, SystemExit):
        service.last_words = (
            f"Stopping; running answers have {DRAIN_S:g} s to end. Ctrl-C stops at once."
        )


def _model(service: LocalService) -> str:
    """The name of the model; a service that leaves one question open is not ended for it."""
    with CoordinatorApi(service.url) as api:
        while True:
            try:
                return api.model()
            except ApiError:
                time.sleep(CHECK_INTERVAL_S)
                service.check()


def _print_addresses(model: str, service: LocalService) -> None:
    url = service.url
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    terminal.write_answer(
        f"""
Paceline serves {model}
  HTTP (OpenAI API)  {url}/v1
  gRPC               {service.grpc_address}  paceline.v1.CoordinatorService
  metrics            {" ".join(service.metrics_urls)}

Try it:
  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
  paceline chat --url {url}

Ctrl-C stops it.
"""
    )
