"""The tokenizer of the table model: every byte is a token of its own, and five more are special.

A character outside ASCII therefore spans several tokens, as it does in large vocabularies. Needs
the `tokenizers` library, not torch.
"""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from tokenizers.pre_tokenizers import ByteLevel

from paceline.engine.table_model import BOS_ID, DEFAULT_MAX_MODEL_LEN, EOS_ID, VOCAB_SIZE
from paceline.engine.tokenizer_files import (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    TokenizerFile,
)

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>")
"""Ids 256 onwards."""

_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def table_tokenizer_files() -> list[TokenizerFile]:
    """The tokenizer as `read_tokenizer_files` would read it from a checkpoint."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "model_max_length": DEFAULT_MAX_MODEL_LEN,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    generation_config = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    return [
        TokenizerFile(TOKENIZER_FILE, _tokenizer().to_str().encode()),
        TokenizerFile(CONFIG_FILE, json.dumps(config).encode()),
        TokenizerFile(GENERATION_FILE, json.dumps(generation_config).encode()),
    ]


def _tokenizer() -> Tokenizer:
    vocabulary = {_spelling(byte): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[(SPECIAL_TOKENS[0], BOS_ID)]
    )
    return tokenizer


def _spelling(byte: int) -> str:
    """A byte as the byte-level alphabet writes it: itself where it is printable in Latin-1.

    The others are moved up, in order, to the code points from 256 (Radford et al., 2019, GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(256 + byte - sum(other < byte for other in printable))
