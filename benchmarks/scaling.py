"""What answers look like while draft and target pods are added and taken away.

The service of the default model with pods as processes, found in EndpointSlices of an API server
of our own, and four clients that ask all the time; each text must be the one without drafts. Run
with `python benchmarks/scaling.py`; needs no server. All pods share the cores of this machine, so
more of them bring no more tokens here: it shows what coming and going costs, and what drafts bring.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from paceline.cli import terminal
from paceline.heads.shipped import shipped_head

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from answers import Body, FrontEnd  # noqa: E402
from kubernetes_api import KubernetesApi  # noqa: E402
from pods import DRAFTS, TARGETS, Load, Phase, Pods, plain_answers  # noqa: E402
from processes import Processes  # noqa: E402
from prompts import read_prompts  # noqa: E402

KV_CACHE_TOKENS = 16_384


def main() -> None:
    """Run all phases, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    # Enough that none is asked twice: drafts would copy the first answer.
    parser.add_argument("--prompts", type=int, default=120, help="different ones")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--answers", type=int, default=12, help="of each phase, at least")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        phases = asyncio.run(_run(options, Path(directory)))
    terminal.results.print("| | targets | drafts | answers | tokens a pass | tokens/s |")
    terminal.results.print("|---|---|---|---|---|---|")
    for phase in phases:
        terminal.results.print(
            f"| {phase.what} | {phase.num_targets} | {phase.num_drafts} | {len(phase.answers)} "
            f"| {phase.tokens_per_pass:.2f} | {phase.tokens_per_s:.1f} |"
        )
    terminal.results.print("No request failed; every text was the one without drafts.")


async def _run(options: argparse.Namespace, directory: Path) -> list[Phase]:
    head = str(shipped_head(""))
    bodies: list[Body] = [
        {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": options.max_tokens,
            "temperature": 0,
        }
        for prompt in read_prompts(options.prompts)
    ]
    async with KubernetesApi() as api:
        os.environ["KUBECONFIG"] = str(api.write_kubeconfig(directory / "kubeconfig"))
        with Processes(directory, num_threads=1) as processes:
            pods = Pods(processes, api)
            targets = [
                pods.start_target(head=head, kv_cache_tokens=KV_CACHE_TOKENS) for _ in range(2)
            ]
            drafts = [
                pods.start_draft("hybrid", head=head, kv_cache_tokens=KV_CACHE_TOKENS)
                for _ in range(4)
            ]
            await pods.add(targets[0], drafts[0])
            coordinator = processes.coordinator([TARGETS], [DRAFTS])
            await asyncio.to_thread(coordinator.wait_ready)
            await pods.until_seen(coordinator)
            terminal.say(f"Asking {len(bodies)} questions without drafts")
            questions = await plain_answers(coordinator, bodies)
            load = Load([coordinator], questions, list(FrontEnd), options.answers)
            phases: list[Phase] = []

            async def phase(what: str) -> None:
                await pods.until_seen(coordinator)
                phases.append(await load.phase(what, pods))
                terminal.say(f"{what}: {phases[-1].tokens_per_s:.1f} tokens/s")

            async with load.running():
                await phase("one of each")
                await pods.add(*drafts[1:3])
                await phase("two drafts more")
                await pods.add(targets[1])
                await phase("a target more")
                for draft in drafts[:3]:
                    await pods.remove(draft)
                await phase("no draft any more")
                await pods.remove(targets[0])
                await phase("the first target gone")
                await pods.add(drafts[3])
                await phase("a draft again")
    return phases


if __name__ == "__main__":
    main()
