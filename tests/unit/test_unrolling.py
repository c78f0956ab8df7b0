"""The head of the trainer computes what the head that serves computes, step by step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from eagle_heads import HIDDEN, HeadFiles, random_head
from tiny_models import save_checkpoint, tiny_config
from torch import Tensor

from draft_service.training.batches import Batch
from draft_service.training.distillation_loss import distillation_loss, learnt_rows
from draft_service.training.eagle import EagleTrainee
from draft_service.training.eagle_export import save_with_token_residual
from draft_service.training.token_residual import TokenResidual, with_token_residual
from draft_service.training.unrolling import true_tokens, unrolled
from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead, HeadRows
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_tensors import Target
from paceline.engine.safetensors_directory import TensorFiles
from paceline.heads.eagle_config import read_head_config

VOCAB = 40
NUM_STEPS = 4
LENGTHS = (1, 2, 7, 12)


def batch_of(lengths: tuple[int, ...], seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(lengths)
    ends = np.cumsum(lengths).tolist()
    positions = torch.cat([torch.arange(length) for length in lengths])
    return Batch(
        torch.randn(num_rows, 3 * HIDDEN, generator=generator).half().float(),
        torch.empty(len(lengths), 0, 3 * HIDDEN),
        torch.zeros(len(lengths), dtype=torch.int64),
        torch.randint(VOCAB, (num_rows,), generator=generator),
        torch.randn(num_rows, HIDDEN, generator=generator),
        positions,
        positions,
        tuple((end - length, end) for length, end in zip(lengths, ends, strict=True)),
    )


def both_heads(directory: Path, files: HeadFiles) -> tuple[EagleTrainee, EagleHead, Tensor]:
    """The trainer's and the server's head of the same checkpoint, and its output matrix."""
    config = read_head_config(str(files.write(directory)))
    target = Target("tiny", directory, HIDDEN, VOCAB, 6, has_tied_embeddings=False)
    weights = read_head_weights(str(directory), config, target)
    tensors = dict(weights.tensors)
    embedding, matrix = tensors.pop("embed_tokens.weight"), tensors.pop("lm_head.weight")
    return EagleTrainee(config, tensors, embedding), EagleHead(config, weights, VOCAB), matrix


def test_every_step_of_every_row_is_what_the_serving_head_drafts_there(tmp_path: Path) -> None:
    for number, settings in enumerate(({}, {"norm_before_residual": True})):
        trainee, server, matrix = both_heads(
            tmp_path / str(number), random_head(VOCAB, seed=5, **settings)
        )
        batch = batch_of(LENGTHS)
        predictions = unrolled(trainee, batch, NUM_STEPS, true_tokens(batch))
        found = [prediction @ matrix.mT for prediction in predictions]
        for first, end in batch.bounds:
            for row in range(first, end):
                kv = HeadKV(0)
                ids = batch.token_ids[first : row + 1].tolist()
                features = batch.features[first : row + 1].half().numpy()
                (logits,) = server.forward([HeadRows(kv, ids, features, wants_logits=True)])
                for step in range(NUM_STEPS):
                    if step:
                        if row + step >= end:
                            break
                        token = [int(batch.token_ids[row + step])]
                        (logits,) = server.forward([HeadRows(kv, token, None, wants_logits=True)])
                    assert logits is not None
                    torch.testing.assert_close(
                        found[step][row], torch.from_numpy(logits[0]), rtol=1e-4, atol=1e-4
                    )


def test_a_head_with_a_token_residual_is_served_as_it_was_trained(tmp_path: Path) -> None:
    target_directory = save_checkpoint(tmp_path / "target", tiny_config(VOCAB))
    target = Target("tiny", target_directory, HIDDEN, VOCAB, 6, has_tied_embeddings=False)
    files = TensorFiles("target", target_directory)
    embedding, output_matrix = files.read("model.embed_tokens.weight"), files.read("lm_head.weight")
    published = both_heads(tmp_path / "published", random_head(VOCAB, seed=5))[0]
    config = replace(published.config, has_token_residual=True, draft_vocab_size=30)
    generator = torch.Generator().manual_seed(2)
    weights = {
        name: torch.randn(weight.shape, generator=generator) / 4
        for name, weight in with_token_residual(
            published.weights, published.weights["norm.weight"]
        ).items()
    }
    table_ids, target_ids = torch.tensor([3, 7, 8, 30]), torch.arange(5, 35)
    table = torch.randn(len(table_ids), HIDDEN, generator=generator)
    residual = TokenResidual(weights, table_ids, table, VOCAB)
    trainee = EagleTrainee(config, weights, embedding, residual)
    folded, head = residual.folded(embedding), str(tmp_path / "head")
    save_with_token_residual(
        Path(head), config, weights, table_ids, folded, target_ids, lambda directory: None
    )
    loaded = read_head_config(head)
    server = EagleHead(loaded, read_head_weights(head, loaded, target), VOCAB)
    batch = batch_of((9,))
    batch.token_ids[:4] = table_ids
    (predictions,) = unrolled(trainee, batch, 1, true_tokens(batch))
    for row in range(9):
        ids, features = batch.token_ids[: row + 1], batch.features[: row + 1].half()
        rows = HeadRows(HeadKV(0), ids.tolist(), features.numpy(), wants_logits=True)
        (logits,) = server.forward([rows])
        assert logits is not None
        found = torch.from_numpy(logits[0])
        assert found.isneginf().sum() == VOCAB - len(target_ids)
        expected = predictions[row] @ output_matrix[target_ids].T
        # Eight bits a number.
        torch.testing.assert_close(found[target_ids], expected, rtol=0.02, atol=2e-4)


def test_the_loss_and_its_gradients_are_those_of_whole_logits() -> None:
    generator = torch.Generator().manual_seed(1)
    batch = batch_of(LENGTHS)
    num_rows = len(batch.token_ids)
    matrix = torch.randn(VOCAB, HIDDEN, generator=generator)
    predictions = [
        torch.randn(num_rows, HIDDEN, generator=generator).requires_grad_() for _ in range(3)
    ]
    is_learnt = learnt_rows(batch, 3, num_shared=4)
    weights = is_learnt * torch.rand(3, num_rows, generator=generator)
    total, sums = distillation_loss(predictions, weights, batch.teacher_states, matrix)
    total.backward()  # type: ignore[no-untyped-call]
    gradients = [prediction.grad for prediction in predictions]
    expected = torch.zeros(())
    expected_sums = torch.zeros(3)
    again = [prediction.detach().requires_grad_() for prediction in predictions]
    for first, end in batch.bounds:
        for step in range(3):
            for row in range(first, end - step):
                if row - first + step + 2 < 4:
                    continue
                law = torch.softmax(matrix @ batch.teacher_states[row + step], 0)
                entropy = -(law * torch.log_softmax(matrix @ again[step][row], 0)).sum()
                expected = expected + weights[step, row] * entropy
                expected_sums[step] += entropy.detach()
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(sums, expected_sums)
    for gradient, prediction in zip(gradients, again, strict=True):
        torch.testing.assert_close(gradient, prediction.grad)
