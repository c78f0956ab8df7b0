"""What a training says before it begins: what it does, with which settings, and where.

Imports no torch: loading that takes a while, and until then nothing else could be said.
"""

from pathlib import Path

from draft_service.training.settings import TrainingSettings

OWN_TOKENS = 1_000_000
"""Tokens that the model writes, unless told otherwise."""


def announcement(settings: TrainingSettings) -> str:
    """Some lines for people."""
    output = Path(settings.output).expanduser()
    model = settings.model or "the bundled model"
    features = settings.features or output / "features"
    epochs = "once" if settings.num_epochs == 1 else f"{settings.num_epochs} times"
    is_begun = (output / "progress.jsonl").exists()
    return "\n".join(
        (
            f"{'Going on with' if is_begun else 'Training'} a drafter {_kind(settings)} for "
            f"{model}, in {output}:",
            f"  text      {_text(settings, output)}",
            f"  features  the model's hidden states for it, in {features}",
            f"  training  {epochs} through the text, {settings.tokens_per_step:,} tokens a step, "
            f"learning rate {settings.learning_rate:g}, seed {settings.seed}",
            f"  drafter   {output / 'head'}, measured every {settings.evaluate_every:,} steps",
            "Ctrl-C stops it; the same command goes on. Loading the model ...",
        )
    )


def _kind(settings: TrainingSettings) -> str:
    match settings.drafter:
        case "eagle":
            details = f"{settings.shape}, {settings.draft_vocab_size:,} draft tokens"
        case "medusa":
            details = f"{settings.unrolled_steps} heads, {settings.draft_vocab_size:,} draft tokens"
        case "early-exit":
            layer = settings.exit_layer or "a quarter of the"
            details = f"behind {layer} layers, {settings.draft_vocab_size:,} draft tokens"
        case "draft-model":
            details = f"{settings.num_layers} layers"
    return f"{settings.drafter} ({details})"


def _text(settings: TrainingSettings, output: Path) -> str:
    number = settings.num_tokens
    if settings.data:
        return f"{'all' if number is None else f'{number:,} tokens'} of {settings.data}"
    answers = f"answers to {settings.prompts}" if settings.prompts else "both sides of chats"
    return f"{number or OWN_TOKENS:,} tokens, {answers}, which the model writes: {output}/text.npz"
