"""`paceline serve` with a draft model whose tokens are not the target's (CASES 42)."""

import json
from pathlib import Path
from typing import Any

import httpx
from other_tokenizers import byte_level_files, lowercasing
from serve_process import ServeProcess
from tiny_models import save_checkpoint
from undisturbed import NUM_TRIES
from waiting import SOON_S


def test_a_draft_with_two_tokens_swapped_drafts_in_the_targets_tokens(tmp_path: Path) -> None:
    draft = save_checkpoint(tmp_path / "draft")
    tokenizer = draft / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer.write_text(json.dumps(content))
    options = ("--model", "table:7", "--drafter", "draft-model", "--draft-model", str(draft))
    with ServeProcess(*options, run_folder=tmp_path) as served:
        served.wait_ready()

        def ask(**speculation: Any) -> Any:
            body = {"prompt": "x", "max_tokens": 30, "seed": 1, "speculation": speculation}
            answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=SOON_S)
            assert answer.status_code == 200, answer.text
            return answer.json()

        for _ in range(NUM_TRIES):
            drafted = ask(method="draft-model", num_speculative_tokens=3)
            num_drafts = drafted["metrics"]["speculative_decoding"]["num_draft_tokens"]
            if num_drafts > 20:
                break
        assert num_drafts > 20
        assert drafted["choices"] == ask(method="off")["choices"]
        (log,) = tmp_path.glob("paceline-*/draft-1.log")
        assert "(token 0 is" in log.read_text()


def test_a_draft_whose_tokens_cannot_be_translated_is_told_at_the_start(tmp_path: Path) -> None:
    draft = save_checkpoint(tmp_path / "draft")
    for file in lowercasing(byte_level_files()):
        (draft / file.name).write_bytes(file.content)
    options = ("--model", "table:7", "--drafter", "draft-model", "--draft-model", str(draft))
    with ServeProcess(*options, run_folder=tmp_path) as served:
        said = served.read_message("changes the text that it reads")
        assert "has other tokens than the target (token 0 is" in said
        assert served.end()[0] == 1
