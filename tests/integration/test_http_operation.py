"""Request ids, models, probes and metrics over HTTP."""

from http_service import CHAT, Service, body

from paceline.errors import Unavailable


async def test_a_request_id_is_echoed_or_made_up(service: Service) -> None:
    asked = await service.client.get("/health", headers={"x-request-id": "my id/1"})
    assert asked.headers["x-request-id"] == "my id/1"
    one = (await service.client.get("/health")).headers["x-request-id"]
    two = (await service.client.get("/no-such-path")).headers["x-request-id"]
    assert one and two and one != two
    for wrong in ("x" * 129, "caf\u00e9"):
        response = await service.client.get("/health", headers={"x-request-id": wrong.encode()})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-id"
        assert response.headers["x-request-id"] != wrong


async def test_equal_request_ids_of_clients_do_not_meet(service: Service) -> None:
    headers = {"x-request-id": "same"}
    for _ in range(2):
        await service.client.post(CHAT, json=body(CHAT), headers=headers)
    one, two = service.generator.requests
    assert one.request_id != two.request_id


async def test_models_with_a_slash_in_their_name_are_found(service: Service) -> None:
    service.generator.model_name = "org/model"
    assert (await service.client.get("/v1/models/org/model")).json()["id"] == "org/model"
    assert (await service.post(CHAT, model="org/model")).json()["model"] == "org/model"


async def test_without_a_target_no_model_is_listed_and_requests_say_why(service: Service) -> None:
    service.generator.model_name = ""
    service.generator.admission = Unavailable("no target worker is ready")
    assert (await service.client.get("/v1/models")).json() == {"object": "list", "data": []}
    assert (await service.client.get("/v1/models/")).status_code == 404
    assert (await service.post(CHAT, model="any")).status_code == 503


async def test_operators_and_probes_are_answered(service: Service) -> None:
    assert (await service.client.get("/health")).json() == {"status": "ok"}
    assert (await service.client.get("/ready")).json() == {"ready": True, "reason": ""}
    assert (await service.client.get("/version")).json()["protocol"] == "1.2"
    status = (await service.client.get("/status")).json()
    assert status["model"] == "scripted"
    assert status["workers"] == []
    assert status["stats"]["tokens_per_target_pass"] == 0
    service.generator.is_ready = False
    response = await service.client.get("/ready")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "reason": "no target"}
    assert (await service.client.get("/health")).status_code == 200


async def test_a_session_store_out_of_reach_is_told(service: Service) -> None:
    for store, is_degraded in (
        ("redis (unreachable: in memory for now)", True),
        ("redis", False),
        ("memory", False),
    ):
        service.generator.session_store = store
        for stream in (False, True):
            response = await service.post(CHAT, stream=stream)
            assert response.headers.get("x-paceline-session-store") == (
                "memory" if is_degraded else None
            )
        scraped = await service.client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")
        assert f"paceline_session_store_degraded {float(is_degraded)}\n" in scraped.text
