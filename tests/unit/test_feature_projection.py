"""What a target sends for an EAGLE-3 head may have gone through the head's first matrix."""

from pathlib import Path

import numpy as np
import torch
from eagle_heads import HIDDEN, random_eagle1_head, random_head
from eagle_owner import (
    HEAD,
    TEXT,
    VOCAB_SIZE,
    Owner,
    proposer_of,
    reference_drafts,
    rows_for,
)
from eagle_reference import reference_logits

from paceline.engine.eagle_checkpoint import read_head_weights, read_projection
from paceline.engine.eagle_head import EagleHead, HeadRows
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_tensors import Target
from paceline.heads.eagle_config import read_head_config


def test_features_that_have_gone_through_fc_say_nearly_the_same(
    tmp_path: Path,
) -> None:
    path = str(HEAD.write(tmp_path))
    config = read_head_config(path)
    projection = read_projection(path, config, HIDDEN)
    assert projection is not None
    target = Target("tiny", tmp_path, HIDDEN, VOCAB_SIZE, 3, has_tied_embeddings=False)
    weights = read_head_weights(path, config, target)
    fed = EagleHead(config, weights, VOCAB_SIZE, is_projected=True)
    assert (fed.feature_size, projection.size, config.feature_size) == (HIDDEN, HIDDEN, 3 * HIDDEN)
    prompt = TEXT[:23]
    projected = projection.project(torch.from_numpy(rows_for(prompt)))
    assert projected.dtype == np.float16
    rows = HeadRows(HeadKV(0), prompt[1:], projected[:-1], wants_logits=True)
    (said,) = fed.forward([rows])
    expected = reference_logits(HEAD, torch.from_numpy(rows_for(prompt)[:-1]), prompt[1:], 0)
    assert said is not None
    (logits,) = said
    known = np.isfinite(logits)
    difference = np.abs(logits[known] - expected.numpy()[known]).max()
    assert 0.0 < difference < 0.01 * np.abs(logits[known]).max()
    owner = Owner(proposer_of(fed), feature_size=projection.size)
    drafts = owner.drafts(prompt, (0, 22), data=projected[:22])
    assert list(drafts.token_ids) == reference_drafts(HEAD, prompt)


def test_the_digest_of_a_projection_tells_heads_apart(tmp_path: Path) -> None:
    digests = []
    for seed in (0, 0, 1):
        path = str(random_head(VOCAB_SIZE, seed=seed).write(tmp_path))
        projection = read_projection(path, read_head_config(path), HIDDEN)
        assert projection is not None
        digests.append(projection.digest)
    assert digests[0] == digests[1] != digests[2]


def test_there_is_nothing_to_project_for_a_head_of_eagle_1(tmp_path: Path) -> None:
    path = str(random_eagle1_head(VOCAB_SIZE).write(tmp_path))
    assert read_projection(path, read_head_config(path), HIDDEN) is None
