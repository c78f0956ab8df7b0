"""What `helm test` runs, in a pod of the coordinator's image: the service answers in every way, and
drafts change nothing.

Asks over HTTP, as a stream, and over gRPC, with and without drafts, and expects one and the same
text. Ends with status 0, or with a sentence that says what was wrong.
"""

import argparse
import asyncio
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import httpx

from paceline.client import Client, GenerateRequest

PROMPT = "The days of the week are Monday, Tuesday,"
MAX_TOKENS = 40
TIMEOUT_S = 240.0

logger = logging.getLogger("smoke")


def main() -> None:
    options = parse_options()
    keys = first_key(options.api_keys_file) if options.api_keys_file else ""
    tls = ssl.create_default_context(cafile=options.tls_ca_file) if options.tls_ca_file else True
    with httpx.Client(
        base_url=options.url,
        headers={"Authorization": f"Bearer {keys}"} if keys else {},
        verify=tls,
        timeout=TIMEOUT_S,
    ) as http:
        model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        logger.info("serves %s", model)
        body = {"model": model, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0}
        texts = {
            "one answer": answer(http, body),
            "one stream": stream(http, body),
            "without speculation": answer(http, body | {"speculation": {"method": "off"}}),
        }
    texts["one gRPC call"] = asyncio.run(call(options.grpc, keys, options.tls_ca_file))
    for name, text in texts.items():
        logger.info("%s: %r", name, text)
        if not text or text != texts["one answer"]:
            raise SystemExit(f"{name} is {text!r}, but expected {texts['one answer']!r}")
    logger.info("all texts are equal")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="the coordinator over HTTP")
    parser.add_argument("--grpc", required=True, help="the coordinator over gRPC, host:port")
    parser.add_argument("--api-keys-file", help="file as the coordinator's; its first key is shown")
    parser.add_argument("--tls-ca-file", help="PEM file of the authority to trust")
    return parser.parse_args()


def first_key(path: str) -> str:
    """The first key of a file with a `name: key` or a key in each line, and comments."""
    lines = [line.strip() for line in Path(path).read_text().splitlines()]
    first = next(line for line in lines if line and not line.startswith("#"))
    return first.rpartition(":")[2].strip()


def answer(http: httpx.Client, body: dict[str, Any]) -> str:
    """The text of a whole answer."""
    response = http.post("/v1/completions", json=body).raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text


def stream(http: httpx.Client, body: dict[str, Any]) -> str:
    """The text of a streamed answer, which has to end as one."""
    text, is_done = "", False
    with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            event = line.removeprefix("data: ")
            if event == "[DONE]":
                is_done = True
            elif line.startswith("data: "):
                text += "".join(choice["text"] for choice in json.loads(event)["choices"])
    if not is_done:
        raise SystemExit("the stream ended without [DONE]")
    return text


async def call(address: str, key: str, tls_ca_file: str | None) -> str:
    """The text of an answer over gRPC."""
    async with Client(address, api_key=key, tls_ca_file=tls_ca_file) as client:
        request = GenerateRequest(prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=0)
        async with asyncio.timeout(TIMEOUT_S):
            return "".join([part.text async for part in client.generate(request)])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    main()
