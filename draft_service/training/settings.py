"""Settings of a training. Read in `__main__` only and passed down as arguments."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from paceline.config import Count, ServiceSettings


class TrainingSettings(ServiceSettings):
    """Train a drafter for a model from the model's own text. The same command goes on where it was
    interrupted."""

    drafter: Literal["eagle", "medusa", "early-exit", "draft-model"] = "eagle"
    """What to train; also the first word behind the command. `eagle`: an EAGLE-3 head; `medusa`:
    several heads that say a token each; `early-exit`: a layer that leads from the target's first
    layers to its output; `draft-model`: a model with a few of the target's layers."""

    output: str
    """Directory for everything that is made; the head is in `head` below it."""

    model: str = ""
    """Hugging Face id or directory of the target. Empty: the bundled model."""

    data: str = ""
    """Text of the model as token ids, an `.npz` (docs/drafters.md has the format). Empty: the model
    writes its own, in batches, with questions of its own if it is a chat model; it is kept as
    `text.npz` in the output directory."""

    prompts: str = ""
    """JSON lines with a `prompt`, or `turns` as Spec-Bench has them, for the model to answer in its
    own text. Empty: it asks itself."""

    num_tokens: Count | None = None
    """Tokens to learn from and to measure with, questions included: of the model's own text, a
    million if unset, or of `--data`, all if unset. Drafts get better with every doubling."""

    features: str = ""
    """Directory of the model's hidden states for that text, so that several trainings share them.
    Empty: `features` in the output directory. What it lacks is captured."""

    shape: Literal["token-residual", "published"] = "token-residual"
    """Of an `eagle` head. `token-residual` adds what the target says behind the last token alone
    and learns several times as fast; only Paceline runs it. `published` is EAGLE-3 as in the
    paper, for other engines too."""

    exit_layer: Count | None = None
    """Layers of the target that run before a trained exit. Unset: a quarter of them."""

    num_layers: Count = 4
    """Layers of a draft model, the target's first and last ones to begin with."""

    draft_vocab_size: Count = 8192
    """Tokens that the drafter can propose: those that are most frequent in the text. Each costs a
    row of the output matrix in every step; rare ones are hardly ever predicted."""

    num_epochs: Count = 1
    """How often all text is gone through. Fresh text helps more than a second time."""

    tokens_per_step: Count = 1024
    """Tokens between two changes of the weights."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """At its highest, behind the warm-up; from there it falls along a cosine."""

    unrolled_steps: Annotated[int, Field(ge=1, le=8)] = 3
    """How many tokens ahead it learns to draft: an `eagle` head from its own output (EAGLE-3's
    training-time test); of `medusa` as many heads are made."""

    held_out_share: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """Part of the sequences that is not trained on but measured with."""

    evaluate_every: Count = 200
    """Steps between two measurements on the held-out text."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Of all that is random: same seed, same text, same weights on the same machine."""

    device: str = "cpu"
    """Where to compute: cpu, cuda or cuda:<index>."""

    num_threads: Count | None = None
    """CPU threads. Unset: PyTorch's own choice, all cores."""

    cache_dir: str = ""
    """Where downloaded models are kept. Empty: Hugging Face's own cache."""

    @model_validator(mode="after")
    def _only_exits_have_a_layer(self) -> Self:
        if self.exit_layer is not None and self.drafter != "early-exit":
            raise ValueError(
                f"--exit-layer is {self.exit_layer}, but the drafter {self.drafter} has none"
            )
        return self

    @model_validator(mode="after")
    def _text_has_one_source(self) -> Self:
        if self.data and self.prompts:
            raise ValueError(
                f"--prompts is {self.prompts!r}, but --data names text that is there already; "
                "expected one of them"
            )
        return self
