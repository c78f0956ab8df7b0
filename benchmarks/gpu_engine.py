"""What the engine does on one device, in this process: is it exact, and what do passes cost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from chained_models import NEAR_TIES, prompts, random_model, write_checkpoint
from contenders import BareLoop
from speculative_loop import SpeculativeLoop
from torch.profiler import ProfilerActivity, profile

from paceline.engine.device import CPU, Device
from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import LanguageModel, PassSequence
from paceline.engine.worker_model import WorkerModel, build_worker_model
from paceline.rounds import SequenceSettings
from target_service.config import TargetSettings

MAX_LENGTH = 2048
NUM_ALONE = 2
"""Texts that are made once more without others beside them."""
CONTEXT = 512
"""Tokens before a pass that is timed."""
GREEDY = SequenceSettings(max_length=2**32 - 1)
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
"""What the host calls on a card, by the beginning of the names that the profiler gives."""


def load_worker(directory: Path, device: Device, dtype: str, kv_cache_tokens: int) -> WorkerModel:
    """A model as a worker runs it."""
    settings = TargetSettings(
        model=str(directory),
        dtype=dtype,  # type: ignore[arg-type]  # one of the device's
        device=str(device.torch_device),
        max_model_len=MAX_LENGTH,
        kv_cache_tokens=kv_cache_tokens,
    )
    return build_worker_model(settings)


def exactness(
    directory: Path, device: Device, num_texts: int, has_time: Callable[[], bool]
) -> dict[str, Any]:
    """Tokens of a small model on the device, against the CPU's, and with drafts against without.

    In float32 against the CPU's float32: other sums, so near ties may differ. With drafts of
    another random model against without, in each type: equal, where the worker claims that.
    """
    for name, seed in (("target", 0), ("draft", 1)):
        module = random_model(NEAR_TIES, torch.float32, CPU.torch_device, seed)
        write_checkpoint(directory / name, module)
    texts, num_tokens = prompts(NEAR_TIES.vocab_size, num_texts, 24), 32
    plain_cpu = BareLoop(load_worker(directory / "target", CPU, "float32", 32_768).model)
    expected = plain_cpu.run(texts, num_tokens).token_ids
    found: dict[str, Any] = {}
    for dtype in device.dtypes:
        if found and not has_time():
            break
        target = load_worker(directory / "target", device, dtype, 32_768)
        draft = load_worker(directory / "draft", device, dtype, 32_768)
        loop = SpeculativeLoop(target.model, draft.model, 4)
        plain = BareLoop(target.model)
        off = plain.run(texts, num_tokens).token_ids
        alone = [plain.run([text], num_tokens).token_ids[0] for text in texts[:NUM_ALONE]]
        on = loop.run(texts, num_tokens).run.token_ids
        found[dtype] = {
            "varies_with_width": target.varies_with_width,
            "texts": num_texts,
            "equal_with_drafts": sum(a == b for a, b in zip(on, off, strict=True)),
            "equal_alone": sum(a == b for a, b in zip(alone, off, strict=False)),
        }
        if dtype == "float32":
            same = [a == b for a, b in zip(off, expected, strict=True)]
            found[dtype]["equal_to_cpu"] = sum(same)
    return found


def pass_costs(
    model: LanguageModel,
    device: Device,
    batches: Sequence[int],
    rows: Sequence[int],
    num_passes: int,
    has_time: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Milliseconds of a pass, the median of some, and what the host launches for one."""
    results = []
    for batch in batches:
        kvs = [model.kv_cache.open([number], salt="") for number in range(batch)]
        if not all(model.kv_cache.reserve(kv, CONTEXT + max(rows)) for kv in kvs):
            raise RuntimeError("the KV cache has no room for the passes to be measured")
        for num_rows in rows:
            if has_time():
                one_pass = partial(_pass, model, kvs, num_rows)
                row: dict[str, Any] = {"batch": batch, "rows": num_rows}
                row["ms"] = _milliseconds(one_pass, device, num_passes)
                results.append(row | {"launches": _launches(one_pass, device)})
        for kv in kvs:
            model.kv_cache.release(kv)
    return results


def _pass(model: LanguageModel, kvs: Sequence[KVSequence[Any]], num_rows: int) -> None:
    for kv in kvs:
        kv.num_tokens = CONTEXT  # what these tokens say takes no time
    # With settings, as rounds bring them: the tokens are chosen where the rows are.
    model.forward([PassSequence(kv, [0] * num_rows, num_rows, settings=GREEDY) for kv in kvs])


def decoding(
    target: LanguageModel,
    drafts: dict[float, LanguageModel],  # by how often they are right
    batches: Sequence[int],
    num_tokens: int,
    has_time: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Tokens/s plain and with drafts, and whether the tokens are equal."""
    results: list[dict[str, Any]] = []
    for batch in batches:
        if results and not has_time():
            break
        texts = prompts(target.vocab_size, batch, 64)
        plain = BareLoop(target)
        plain.run(texts, 4)
        off = plain.run(texts, num_tokens)
        row: dict[str, Any] = {"batch": batch, "plain_tokens_per_s": off.tokens_per_s}
        for agreement, draft in drafts.items():
            if not has_time():
                break
            loop = SpeculativeLoop(target, draft, 4)
            loop.run(texts, 8)
            on = loop.run(texts, num_tokens)
            row[f"drafts_{agreement:g}"] = {
                "tokens_per_s": on.run.tokens_per_s,
                "acceptance": on.acceptance,
                "draft_share": on.draft_share,
                "is_equal": on.run.token_ids == off.token_ids,
            }
        results.append(row)
    return results


def _milliseconds(one_pass: Callable[[], None], device: Device, num_passes: int) -> float:
    for _ in range(2):  # which capture, and allocate
        one_pass()
    times = []
    for _ in range(num_passes):
        device.synchronize()
        started = perf_counter()
        one_pass()
        device.synchronize()
        times.append(perf_counter() - started)
    return 1000 * median(times)


def _launches(one_pass: Callable[[], None], device: Device) -> int:
    """What the host asks of a card for one pass; on a CPU the operations of torch."""
    is_card = device.torch_device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_card else [])]
    with profile(activities=activities) as profiled:
        one_pass()
        device.synchronize()
    names = [event.name for event in profiled.events()]
    beginnings = LAUNCHES if is_card else ("aten::",)
    return sum(name.startswith(beginnings) for name in names)
