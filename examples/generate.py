"""Streams one answer over gRPC. Start `paceline serve` first."""

import asyncio
import sys

from paceline.client import Client, GenerateRequest
from paceline.errors import Unavailable


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "Once upon a time"
    async with Client("127.0.0.1:50051") as client:
        request = GenerateRequest(prompt=prompt, max_tokens=60, temperature=0)
        async for part in client.generate(request):
            sys.stdout.write(part.text)
            sys.stdout.flush()
    sys.stdout.write("\n")


try:
    asyncio.run(main())
except Unavailable as error:
    sys.exit(f"{error.message}\nIs `paceline serve` running?")
