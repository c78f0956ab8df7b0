"""The `config.json` of a trained exit, which `--drafter early-exit` may run behind some layers.

Knows nothing about tensors, imports no torch.

Invariant: a setting is followed or refused by its name.
"""

from dataclasses import dataclass

from paceline.heads.config_file import ConfigReader, read_config_file
from paceline.heads.sizes import Size


@dataclass(frozen=True, slots=True)
class ExitConfig:
    """What an exit is made of."""

    exit_layer: int
    """Layers of the target that run before it."""
    target: str
    """The model that it was trained for, as those called it who did; for people."""
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    """Tokens that it can propose."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What must be the target's."""
        return (
            Size("hidden_size", self.hidden_size, "hidden_size"),
            Size("vocab_size", self.vocab_size, "vocab_size"),
        )


def read_exit_config(head: str) -> ExitConfig:
    """The config of the exit in the directory `head`.

    Raises:
        InvalidConfig: there is none, or it asks for something that is not supported.
    """
    reader = ConfigReader(head, read_config_file(head))
    reader.check_fixed({"model_type": "early_exit"})
    sizes = {"hidden_size", "vocab_size", "draft_vocab_size"}
    reader.check_known({"model_type", "exit_layer", "target"} | sizes)
    vocab_size = reader.count("vocab_size")
    config = ExitConfig(
        exit_layer=reader.count("exit_layer"),
        target=reader.text("target"),
        hidden_size=reader.count("hidden_size"),
        vocab_size=vocab_size,
        draft_vocab_size=reader.count("draft_vocab_size", vocab_size),
    )
    if config.draft_vocab_size > vocab_size:
        expected = f"at most vocab_size, {vocab_size}"
        raise reader.refused("draft_vocab_size", config.draft_vocab_size, expected)
    return config
