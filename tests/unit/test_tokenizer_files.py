"""Tokenizers are equal when their ids mean the same, and a difference is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import (
    TokenizerFile,
    first_vocabulary_difference,
    read_tokenizer_files,
    tokenizer_digest,
    vocabulary_size,
)
from paceline.errors import InvalidConfig


def bundle(
    vocabulary: Any, added: dict[str, int] | None = None, merges: Any = None, config: Any = None
) -> list[TokenizerFile]:
    model = {"vocab": vocabulary} | ({} if merges is None else {"merges": merges})
    tokens = [{"id": token_id, "content": token} for token, token_id in (added or {}).items()]
    tokenizer = {"model": model, "added_tokens": tokens}
    return [
        TokenizerFile("tokenizer.json", json.dumps(tokenizer).encode()),
        TokenizerFile("tokenizer_config.json", json.dumps(config or {}).encode()),
    ]


def test_files_are_read_in_one_order_and_others_are_left_out(tmp_path: Path) -> None:
    names = [
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors",
        "config.json",
        "chat_template.jinja",
        "tokenizer_config.json",
    ]
    for name in names:
        (tmp_path / name).write_text(name)
    assert read_tokenizer_files(tmp_path) == [
        TokenizerFile(name, name.encode())
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "generation_config.json",
        )
    ]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_every_tokenizer_has_is_missed_by_name(tmp_path: Path, name: str) -> None:
    for file in table_tokenizer_files():
        (tmp_path / file.name).write_bytes(file.content)
    (tmp_path / name).unlink()
    with pytest.raises(InvalidConfig, match=f"directory '{tmp_path}' has no {name}"):
        read_tokenizer_files(tmp_path)


def test_the_way_a_file_is_written_makes_no_difference() -> None:
    files = table_tokenizer_files()
    pretty = [
        TokenizerFile(file.name, json.dumps(json.loads(file.content), indent=4).encode())
        for file in reversed(files)
    ]
    assert tokenizer_digest(pretty) == tokenizer_digest(files)
    assert first_vocabulary_difference(files, pretty) is None


def test_merges_are_the_same_as_pairs_and_as_text() -> None:
    pairs, text = (bundle({"a": 0}, merges=merges) for merges in ([["a", "b"]], ["a b"]))
    assert tokenizer_digest(pairs) == tokenizer_digest(text)


def test_two_tokens_that_changed_places_are_named_by_the_lower_id() -> None:
    target = bundle({"a": 0, "b": 1, "c": 2, "d": 3})
    draft = bundle({"a": 0, "c": 1, "b": 2, "d": 3})
    assert first_vocabulary_difference(target, draft) == (
        "token 1 is 'b' for the target and 'c' for the draft"
    )


def test_a_smaller_vocabulary_is_named_by_the_first_token_that_it_lacks() -> None:
    target, draft = bundle({"a": 0, "b": 1}), bundle({"a": 0})
    assert first_vocabulary_difference(target, draft) == (
        "token 1 is 'b' for the target and missing for the draft"
    )
    assert first_vocabulary_difference(draft, target) == (
        "token 1 is missing for the target and 'b' for the draft"
    )


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_another_first_or_last_token_is_named(name: str) -> None:
    target = bundle({"a": 0, "b": 1}, config={name: "a"})
    draft = bundle({"a": 0, "b": 1}, config={name: {"content": "b", "lstrip": False}})
    assert first_vocabulary_difference(target, draft) == (
        f"{name} is 'a' for the target and 'b' for the draft"
    )


def test_added_tokens_and_scored_pieces_count_as_vocabulary() -> None:
    scored = bundle([["a", -1.0], ["b", -2.0]], added={"<end>": 5})
    assert vocabulary_size(scored) == 6
    assert first_vocabulary_difference(scored, bundle({"a": 0, "b": 1, "<end>": 5})) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda files: files[1:], "has no tokenizer.json"),
        (lambda files: [TokenizerFile("tokenizer.json", b"{"), files[1]], "is not JSON"),
        (lambda files: [TokenizerFile("tokenizer.json", b"{}"), files[1]], "has no vocabulary"),
    ],
)
def test_a_damaged_bundle_is_refused(
    damage: Callable[[list[TokenizerFile]], list[TokenizerFile]], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        tokenizer_digest(damage(bundle({"a": 0})))


vocabularies = st.lists(st.sampled_from("abcd"), unique=True).map(
    lambda tokens: {token: token_id for token_id, token in enumerate(tokens)}
)
bundles = st.builds(
    bundle,
    vocabularies,
    added=st.dictionaries(st.sampled_from("xy"), st.integers(4, 5), max_size=1),
    merges=st.lists(st.sampled_from(["a b", "c d"]), max_size=1),
    config=st.sampled_from([{}, {"eos_token": "a"}]),
)


@given(bundles, bundles)
def test_digests_are_equal_exactly_when_no_difference_is_found(
    target: list[TokenizerFile], draft: list[TokenizerFile]
) -> None:
    equal = tokenizer_digest(target) == tokenizer_digest(draft)
    assert equal == (first_vocabulary_difference(target, draft) is None)
