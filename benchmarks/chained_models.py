"""Checkpoints in the shape of known models whose drafts are accepted as often as one likes.

Nothing is downloaded: weights are random, made where they will run. The embedding of a token points
at the row of the head that belongs to the next one of a fixed chain, and the layers add little to
it, so the model says that chain greedily, at the whole cost of its shape. A draft model has a chain
of its own, which differs at a share of the tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>")
"""The last ids. No chain comes upon them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model of the Llama pattern."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    initializer_range: float = 0.005
    """So small that the layers together add less than a token's embedding."""

    def config(self) -> LlamaConfig:
        """As transformers has it."""
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            max_position_embeddings=4096,
            initializer_range=self.initializer_range,
            bos_token_id=self.vocab_size - 2,
            eos_token_id=self.vocab_size - 1,
            tie_word_embeddings=False,
        )


TARGET_8B = Shape("8B", 32, 4096, 14336, 32, 8, 128_256)
"""Meta's Llama 3.1 8B."""
DRAFT_1B = Shape("1B", 16, 2048, 8192, 32, 8, 128_256)
"""Meta's Llama 3.2 1B, but with a head of its own."""
SMALL_TARGET = Shape("small target", 6, 256, 704, 8, 4, 4096)
SMALL_DRAFT = Shape("small draft", 2, 128, 352, 4, 2, 4096)
"""For a CPU: they show that everything runs."""
NEAR_TIES = Shape("near ties", 4, 128, 352, 8, 4, 1024, initializer_range=0.02)
"""With weights of transformers' own size, so that many tokens are nearly as likely."""


def chain(vocab_size: int, agreement: float = 1.0) -> torch.Tensor:
    """The next token of each token, `[V]`: one cycle through all but the special ones.

    With an `agreement` below 1 it is the chain of a draft that is right at so many of the tokens.
    """
    generator = torch.Generator().manual_seed(0)
    num_tokens = vocab_size - len(SPECIAL_TOKENS)
    order = torch.randperm(num_tokens, generator=generator)
    following = torch.zeros(vocab_size, dtype=torch.long)
    following[order] = order.roll(-1)
    is_wrong = torch.rand(vocab_size, generator=generator) >= agreement
    return torch.where(is_wrong, following[following], following)


@torch.no_grad()
def random_model(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Any:
    """A model with random weights, made on the device."""
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)


@torch.no_grad()
def chained_model(
    shape: Shape, dtype: torch.dtype, device: torch.device, agreement: float = 1.0
) -> Any:
    """A model that says the chain of this agreement, made on the device."""
    module = random_model(shape, dtype, device)
    head = module.lm_head.weight
    head.normal_(std=0.1)
    following = chain(shape.vocab_size, agreement).to(device)
    module.model.embed_tokens.weight.copy_(head[following] / 0.1)
    return module


def write_checkpoint(directory: Path, module: Any) -> Path:
    """Write a model with a tokenizer for its ids."""
    module.save_pretrained(directory)
    _write_tokenizer(directory, module.config.vocab_size)
    return directory


def prompts(vocab_size: int, number: int, num_tokens: int) -> list[list[int]]:
    """Different random texts."""
    generator = torch.Generator().manual_seed(1)
    highest = vocab_size - len(SPECIAL_TOKENS)
    ids = torch.randint(highest, (number, num_tokens), generator=generator)
    return [[int(token_id) for token_id in row] for row in ids]


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A token for each byte, and words that no text is cut into but every token id has."""
    alphabet = sorted(ByteLevel.alphabet())
    words = [f"Ġ{number:x}" for number in range(vocab_size - len(alphabet) - len(SPECIAL_TOKENS))]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
