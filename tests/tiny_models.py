"""Checkpoint directories of models so small that a test makes them, random but seeded."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from paceline.engine.table_model import BOS_ID, EOS_ID, VOCAB_SIZE
from paceline.engine.table_tokenizer import table_tokenizer_files

NUM_LAYERS = 3


def tiny_config(vocab_size: int = VOCAB_SIZE) -> PretrainedConfig:
    """A Llama of three layers with the tokens of the table model."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )


def save_checkpoint(directory: Path, config: PretrainedConfig | None = None) -> Path:
    """Write a random model of `config` and the table model's tokenizer to `directory`."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config or tiny_config()).save_pretrained(directory)
    for file in table_tokenizer_files():
        (directory / file.name).write_bytes(file.content)
    return directory
