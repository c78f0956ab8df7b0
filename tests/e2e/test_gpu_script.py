"""`benchmarks/gpu.sh` is for machines that are rare: without a GPU all of it runs, too."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")
def test_without_a_card_every_part_runs_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = ["sh", "benchmarks/gpu.sh", "--output", str(output), "--scale-of-time", "20"]
    environment = {**os.environ, "LIMIT_S": "1800"}  # a busy machine is no reason to fail
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU fallback, no GPU" in done.stdout
    found = json.loads(output.read_text())
    assert {row["equal_with_drafts"] for row in found["exactness"].values()} == {4}
    assert len(found["passes"]["small target"]) == 6
    assert [row["batch"] for row in found["decoding"]] == [1, 8, 32]
    assert all(row["is_equal"] for row in found["services"])
