"""Two processes that share a model say what one says, and always the same, whatever the batch."""

import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checked_trees import BROAD, TEXT, check_tree
from engine_runs import extend, fresh_rows, same_bits
from families import FAMILIES, family_model
from paging_cpu import PAGING_CPU
from rank_group import leading

from paceline.engine.device import CPU, Device
from paceline.engine.model import LanguageModel, PassSequence
from paceline.engine.ranks.build import load_rank
from paceline.engine.ranks.group import RankFailed, RankGroup
from paceline.engine.ranks.messages import Kind
from paceline.engine.ranks.place import GroupBroken
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.transformer import TransformerModel
from paceline.engine.worker_model import WorkerModel
from paceline.errors import InvalidConfig
from paceline.rounds import Drafts
from tests.rank_follower import RankSettings

LAYERS = (0, 2, 3)
EXACT = ("llama", "gemma3_text", "phi3")
"""Fused and as transformers computes them, tied and not, divided in all the ways that there are."""
KINDS = [(family, "float32") for family in FAMILIES] + [("mistral", "bfloat16")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The cores are shared with the other rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def saved(directory: Path, family: str, dtype: str) -> Path:
    checkpoint = directory / f"{family}-{dtype}"
    family_model(family, getattr(torch, dtype)).save_pretrained(checkpoint)
    for file in table_tokenizer_files():
        (checkpoint / file.name).write_bytes(file.content)
    return checkpoint


def load(group: RankGroup, checkpoint: Path, dtype: str, device: Device = CPU) -> WorkerModel:
    settings = RankSettings(str(checkpoint), dtype, feature_layers=LAYERS)
    loaded = load_rank(settings, device, group)
    assert isinstance(loaded, WorkerModel)
    return loaded


def num_parameters(family: str) -> int:
    return sum(parameter.numel() for parameter in family_model(family).parameters())


def check_exact(model: LanguageModel) -> None:
    rows = fresh_rows(model, TEXT)
    assert same_bits(fresh_rows(model, TEXT, chunk=64), rows)
    kv = model.kv_cache.open(TEXT[:1], salt="")
    assert model.kv_cache.reserve(kv, 290)
    (none,) = model.forward([PassSequence(kv, TEXT[:290], 0)])
    assert none.shape == (0, model.vocab_size)
    assert same_bits(extend(model, kv, TEXT[290:]), rows[290:])
    for position, widths in ((300, (1, 2, 3, 7, 16)), (505, (1, 5, 16)), (511, (1, 2))):
        for width in widths:
            model.kv_cache.truncate(kv, position)
            part = extend(model, kv, TEXT[position : position + width])
            assert same_bits(part, rows[position : position + width])
        extend(model, kv, TEXT[kv.num_tokens :])
    model.kv_cache.release(kv)
    check_tree(model, 507, 2, BROAD, 15, Drafts((7, 8, 9), (-1, -1, 0)))


def test_two_ranks_of_every_family(tmp_path: Path) -> None:
    checkpoints = {kind: saved(tmp_path, *kind) for kind in KINDS}
    arguments = [f"{dtype}:{path}" for (_, dtype), path in checkpoints.items()]
    with leading(2, arguments) as (group, _):
        for (family, dtype), checkpoint in checkpoints.items():
            loaded = load(group, checkpoint, dtype)
            model = loaded.model
            alone = TransformerModel(
                family_model(family, getattr(torch, dtype)), model.vocab_size, 1024, 16 * 1024
            )
            assert loaded.numerics != alone.numerics
            assert loaded.num_parameters == num_parameters(family)
            if dtype == "float32":
                found, expected = (fresh_rows(one, TEXT[:80]) for one in (model, alone))
                difference = np.abs(found - expected).max()
                assert difference < 1e-4 * np.abs(expected).max(), family
            if family in EXACT or dtype == "bfloat16":
                check_exact(model)
            else:
                check_tree(model, 60, 1, BROAD, 10, Drafts((7, 8), (-1, -1)))
            assert model.kv_cache.num_used == 0
            group.send([Kind.STOP])


def check_reuse(model: LanguageModel) -> None:
    rows = fresh_rows(model, TEXT)
    first = model.kv_cache.open(TEXT[:1], salt="warm")
    extend(model, first, TEXT)
    model.kv_cache.register(first, TEXT)
    copied = model.kv_cache.open(TEXT, salt="warm")
    assert copied is not first and copied.num_tokens > 500
    assert same_bits(extend(model, copied, TEXT[copied.num_tokens :]), rows[528:])
    model.kv_cache.release(copied)
    model.kv_cache.release(first)
    seed = 0
    while model.kv_cache.num_evictions == 0:
        seed += 1
        other = [(seed + token) % 150 for token in TEXT[:30]]
        kv = model.kv_cache.open(other, salt="")
        extend(model, kv, other[kv.num_tokens :])
        model.kv_cache.register(kv, other)
        model.kv_cache.release(kv)
    assert same_bits(fresh_rows(model, TEXT), rows)


def test_all_ranks_keep_the_same_and_end_with_a_pass_that_fails(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "llama", "float32")
    with leading(2, [f"float32:{checkpoint}:paged", f"float32:{checkpoint}"]) as (group, _):
        paged = load(group, checkpoint, "float32", PAGING_CPU).model
        check_tree(paged, 252, 1, Drafts((5, 6, 7, 8), (-1, 0, 0, -1)), 2, Drafts((7, 8), (-1, -1)))
        check_reuse(paged)
        expected = fresh_rows(paged, TEXT)
        group.send([Kind.STOP])
        model = load(group, checkpoint, "float32").model
        assert same_bits(fresh_rows(model, TEXT), expected)
        check_reuse(model)
        kv = model.kv_cache.open(TEXT[:1], salt="")
        with pytest.raises(GroupBroken, match="in the middle of a pass"):
            model.forward([PassSequence(kv, TEXT[:4], 1)])  # no room was reserved


def listening_hosts(pid: int) -> set[str]:
    """Addresses at which a process listens (Linux)."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and inode in inodes:
            found.add(socket.inet_ntoa(bytes.fromhex(local[:8])[::-1]))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_is_missed_within_the_time_out(number: signal.Signals) -> None:
    with leading(2, (), timeout_s=8) as (group, (other,)):
        assert group.tick() is False
        assert listening_hosts(os.getpid()) == listening_hosts(other.pid) == {"127.0.0.1"}
        other.send_signal(number)
        with pytest.raises(GroupBroken, match="rank 0 cannot reach rank 1: it has ended, or "):
            for _ in range(3):
                group.tick()


def test_a_rank_that_was_told_something_else_is_named(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "llama", "float32")
    with leading(2, [f"bfloat16:{checkpoint}"]) as (group, (other,)):
        with pytest.raises(RankFailed, match="dtype is 'bfloat16' at rank 1; expected 'float32'"):
            load(group, checkpoint, "float32")
        assert other.wait(60) > 0


def test_the_reason_of_a_rank_that_cannot_load_reaches_the_others(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "llama", "float32")
    with leading(2, [f"float32:{checkpoint}"]) as (group, (other,)):
        settings = RankSettings(str(checkpoint), head="nowhere")
        with pytest.raises(InvalidConfig, match="nowhere"):
            load_rank(settings, CPU, group)
        _, errors = other.communicate(timeout=60)
        assert re.search("rank 0 of the group cannot start: .*nowhere", errors)


class Unwilling:
    """The group of a rank whose others, too, cannot start."""

    rank, size = 0, 2

    def meet(self, facts: Sequence[tuple[str, str]] = (), error: str = "") -> None:
        if error:
            raise RankFailed(f"rank 1 of the group cannot start: {error}")


def test_a_rank_that_cannot_load_gives_its_own_reason_where_no_other_can_either() -> None:
    group: Any = Unwilling()
    with pytest.raises(InvalidConfig, match=r"^model '\./nowhere' is no directory"):
        load_rank(RankSettings("./nowhere"), CPU, group)
