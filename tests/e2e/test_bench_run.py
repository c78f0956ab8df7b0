"""`paceline bench` over real processes with the table model."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_run_of_its_own_server_counts_every_token_and_finds_equal_answers(tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Once upon a time", "Go on"]},
        {"question_id": 161, "category": "translation", "turns": ["Guten Tag. Guten Tag."]},
        {"question_id": 241, "category": "qa", "turns": ["Who?"]},
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = [sys.executable, "-m", "paceline.cli.main", "bench", str(prompts)]
    # A named drafter and number are used in every round, whether they pay or not.
    options = ["--drafter", "self", "--method", "self", "--num-speculative-tokens", "3"]
    options += ["--model", "table:7", "--max-tokens", "24", "--concurrency", "3"]
    options += ["--temperature", "1", "--seed", "5", "--output", str(output)]
    result = subprocess.run(
        [*command, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Texts and token ids are equal in 3 of 3." in result.stderr
    document = json.loads(output.read_text())
    (service,) = document["services"]
    assert [group["group"] for group in service["groups"]] == ["mt", "translation", "qa"]
    overall = service["overall"]
    assert overall["draft_acceptance_rate"] == 1.0
    # The last round of an answer may have room for fewer than three.
    assert overall["acceptance_by_position"][0] == 1.0
    assert len(overall["acceptance_by_position"]) == 3
    assert overall["on"]["tokens_per_target_pass"] > 2
    assert overall["off"]["tokens_per_target_pass"] == 1.0
    assert overall["draft_ms_per_token"] > 0
    # A round's sequence id alone is 32 bytes each way.
    rounds_per_token = 1 / overall["on"]["tokens_per_target_pass"]
    assert overall["draft_bytes_per_token"] > 64 * rounds_per_token / 2
    assert overall["target_bytes_per_token"] > 64 * rounds_per_token
    for row in service["rows"]:
        num_tokens = sum(count for _, count in row["chunks"])
        assert num_tokens == len(row["token_ids"]) == row["completion_tokens"] > 0


def test_several_drafters_get_a_server_each_and_are_compared(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the rain in the rain in the rain")
    command = [sys.executable, "-m", "paceline.cli.main", "bench", str(prompts)]
    options = ["--drafter", "self", "--drafter", "suffix", "--model", "table:7"]
    options += ["--max-tokens", "16", "--markdown"]
    result = subprocess.run(
        [*command, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["self", "suffix"]
    assert all(row.endswith("| 1/1 |") for row in rows)
    assert result.stderr.count("Texts and token ids are equal in 1 of 1.") == 2
