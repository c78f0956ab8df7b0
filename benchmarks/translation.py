"""How often translated drafts are accepted, and what they cost, for a draft with other tokens.

    python benchmarks/translation.py --merges 8000 [--answers 6] [--tokens 24] [--drafts 3]

There is no second real model here, so the draft is the default model with another tokenizer: its
ids permuted, and with `--merges` only the first so many merges of its tokenizer and the rows of the
tokens that these make. What the model has learnt to say in one token it must then say in several,
so the figures are those of translation, not those of a good draft. Both ways back to the target are
replayed over greedy answers of the model whose text is known (`smollm2_selfgen.npz`), which gives
the acceptance of a live greedy loop.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file, save_file

from draft_service.drafters.translated_model import (
    SharedTokenChoice,
    TextChoice,
    TranslatedDrafter,
)
from draft_service.proposer import Proposal
from draft_service.translation.shared_tokens import SharedTokens, agreement
from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import load_model
from paceline.engine.model_directory import resolve_model
from paceline.engine.tokenizer_files import read_tokenizer_files
from paceline.engine.transformer import TransformerModel
from paceline.rounds import SequenceSettings
from paceline.token_log import TokenLog

TEXTS = Path("../shared/data/smollm2_selfgen.npz")
KV_CACHE_TOKENS = 4096
MAX_PROMPT = 220


class KnownAnswer(NamedTuple):
    """A prompt, and what the target says to it greedily."""

    prompt: list[int]
    token_ids: list[int]


def save_pair(directory: Path, num_merges: int | None) -> None:
    """The default model with its tokens permuted, and fewer of them."""
    source = resolve_model(DEFAULT_MODEL)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, directory)
    document = json.loads((source / "tokenizer.json").read_text())
    old = document["model"]["vocab"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in document["model"]["merges"]]
    special = [token["content"] for token in document["added_tokens"]]
    made = {"".join(merge) for merge in merges}
    letters = [token for token in old if token not in made and token not in special]
    kept = merges[:num_merges]
    tokens = list(dict.fromkeys([*special, *letters, *("".join(merge) for merge in kept)]))
    random.Random(1).shuffle(tokens)
    new = {token: token_id for token_id, token in enumerate(tokens)}
    document["model"] |= {"vocab": new, "merges": kept}
    for token in document["added_tokens"]:
        token["id"] = new[token["content"]]
    (directory / "tokenizer.json").write_text(json.dumps(document))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": len(tokens)}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config.pop(name, None)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").unlink(missing_ok=True)
    rows = [old[token] for token in tokens]
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2 and len(weight) == len(old):
            weights[name] = weight[rows].clone()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def known_answers(path: Path, number: int, num_tokens: int) -> Iterator[KnownAnswer]:
    """As many of chat, of mathematics and of tasks over text."""
    texts = np.load(path)
    ends = np.cumsum(texts["lens"].astype(int)).tolist()
    is_fit = (texts["temp"] == 0) & (texts["resp"] < MAX_PROMPT)
    is_fit &= texts["lens"].astype(int) - texts["resp"] > num_tokens
    for kind in range(3):
        fit = np.flatnonzero(is_fit & (texts["kind"] == kind))
        for index in fit[:: len(fit) // -(-number // 3)][: -(-number // 3)].tolist():
            start, answer = ends[index] - int(texts["lens"][index]), int(texts["resp"][index])
            token_ids = texts["ids"][start : ends[index]].tolist()
            yield KnownAnswer(token_ids[:answer], token_ids[answer : answer + num_tokens])


def replay(drafter: TranslatedDrafter, answers: list[KnownAnswer], num_drafts: int) -> str:
    """Draft and commit each answer round by round; the figures in one line."""
    num_rounds = num_accepted = num_proposed = num_steps = 0
    seconds = 0.0
    for number, (prompt, said) in enumerate(answers):
        log = TokenLog.of([*prompt, said[0]])
        settings = SequenceSettings(max_length=len(prompt) + len(said) + num_drafts + 1)
        start, place = 0, 1
        while place < len(said):
            sequence = drafter.table.sync(str(number), log.span(start), settings)
            started = time.thread_time()
            proposal = Proposal(sequence, num_drafts)  # type: ignore[arg-type]
            while not proposal.is_done:
                drafter.extend([proposal])
                num_steps += 1
            seconds += time.thread_time() - started if start else 0.0
            start = len(log)
            pairs = zip(proposal.token_ids, said[place:], strict=False)
            accepted = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if accepted is None:
                accepted = min(len(proposal.token_ids), len(said) - place)
            num_rounds, num_accepted = num_rounds + 1, num_accepted + accepted
            num_proposed += len(proposal.token_ids)
            log.token_ids.extend(said[place : place + accepted + 1])
            place += accepted + 1
        drafter.table.close(str(number))
    return (
        f"accepted {num_accepted / max(num_proposed, 1):.0%} of {num_proposed}, "
        f"{1 + num_accepted / num_rounds:.2f} tokens a round, "
        f"{num_steps / max(num_proposed, 1):.2f} draft passes and "
        f"{1000 * seconds / max(num_proposed, 1):.1f} ms CPU a proposed token"
    )


def say(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure one pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--merges", type=int, help="merges that are kept; all without it")
    parser.add_argument("--answers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--drafts", type=int, default=3, help="a round")
    parser.add_argument("--texts", type=Path, default=TEXTS)
    options = parser.parse_args()
    answers = list(known_answers(options.texts, options.answers, options.tokens))
    target = Vocabulary("the target", read_tokenizer_files(resolve_model(DEFAULT_MODEL)))
    with tempfile.TemporaryDirectory() as folder:
        save_pair(Path(folder), options.merges)
        loaded = load_model(folder, dtype="float32", device="cpu")
    draft = Vocabulary("the draft", loaded.tokenizer_files)
    model = TransformerModel(
        loaded.module, loaded.vocab_size, loaded.max_model_len, KV_CACHE_TOKENS
    )
    shared = SharedTokens(target, draft, model.vocab_size)
    share = agreement(target, draft)
    say(f"{len(draft)} tokens, {len(shared)} shared, agreement {share:.3f}")
    for name, choice in (
        ("token by token", SharedTokenChoice(shared)),
        ("as text", TextChoice(target, draft)),
    ):
        drafter = TranslatedDrafter(model, target, draft, choice)
        say(f"{name}: {replay(drafter, answers, options.drafts)}")


if __name__ == "__main__":
    main()
