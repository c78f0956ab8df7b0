"""The HTTP side of the coordinator: OpenAI's API, and what operators and probes ask."""

import time
from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from coordinator.http import errors, generation
from coordinator.http.answers import speculative_decoding
from coordinator.http.authentication import Authentication
from coordinator.http.generation import TextGenerator
from coordinator.http.openapi import description
from coordinator.http.request_ids import RequestIds
from coordinator.http.response_counts import ResponseCounts
from coordinator.http.traced import Traced
from coordinator.http.wire import ClientGone, json_response
from coordinator.metrics import Metrics
from paceline import __version__
from paceline.api_keys import ApiKeys
from paceline.errors import NotFound, PacelineError, shown
from paceline.rounds import PROTOCOL_MAJOR, PROTOCOL_MINOR
from paceline.telemetry.tracer import NOT_TRACED, Tracer


def create_app(
    generator: TextGenerator,
    metrics: Metrics,
    keys: ApiKeys | None = None,
    tracer: Tracer = NOT_TRACED,
) -> FastAPI:
    """An application that answers with this generator and shows these metrics.

    With `keys` whoever asks for more than how it is has to show one.
    """
    app = FastAPI(
        title="Paceline",
        version=__version__,
        openapi_url=None,
        # It would record requests a second time, and with them bodies and messages of errors.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    # The last one added is met first.
    app.add_middleware(Traced, tracer=tracer)
    if keys is not None:
        app.add_middleware(Authentication, keys=keys)
    app.add_middleware(RequestIds)
    app.add_middleware(ResponseCounts, metrics)
    app.add_exception_handler(PacelineError, errors.paceline_error)
    app.add_exception_handler(HTTPException, errors.http_error)
    app.add_exception_handler(ClientGone, errors.client_gone)
    app.add_exception_handler(Exception, errors.internal_error)
    _add_openai_routes(app, generator)
    _add_operator_routes(app, generator, metrics)
    return app


def _add_openai_routes(app: FastAPI, generator: TextGenerator) -> None:
    created = int(time.time())

    def model_card() -> dict[str, object]:
        return {
            "id": generator.model_name,
            "object": "model",
            "created": created,
            "owned_by": "paceline",
        }

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await generation.chat_completion(generator, request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await generation.completion(generator, request)

    @app.get("/v1/models")
    async def models() -> Response:
        cards = [model_card()] if generator.model_name else []
        return json_response({"object": "list", "data": cards})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        if not model or model != generator.model_name:
            raise NotFound(f"model: {shown(model)} is not served here", "model")
        return json_response(model_card())


def _add_operator_routes(app: FastAPI, generator: TextGenerator, metrics: Metrics) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process is alive."""
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a request would work."""
        status = generator.status()
        body = {"ready": status.ready, "reason": status.reason}
        return json_response(body, 200 if status.ready else 503)

    @app.get("/status")
    async def status() -> Response:
        found = generator.status()
        return json_response({**asdict(found), "stats": speculative_decoding(found.stats)})

    @app.get("/openapi.json")
    async def openapi() -> Response:
        """What this API says of itself."""
        return json_response(description())

    @app.get("/version")
    async def version() -> Response:
        protocol = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
        return json_response({"version": __version__, "protocol": protocol})

    @app.get("/metrics")
    async def metrics_(request: Request) -> Response:
        metrics.show(generator.status())
        accept = request.headers.get("accept", "")
        content, content_type = await metrics.instruments.fetched(accept)
        return Response(content, headers={"content-type": content_type})
