"""Tokenizers of both kinds, learnt from a few sentences, and models that speak them."""

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.model import Logits
from paceline.engine.table_model import EOS_ID, TableLaw, TokenIds
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, TokenizerFile

SENTENCES = (
    "the rain in the plain stays mainly in the spain and on the train to the rain",
    "she sells sea shells on the shore, and the shells that she sells are sea shells",
    "It was the best of times, it was the worst of times, it was the age of wisdom.",
    "the other one is there, and that is that; on and on it goes, in and out.",
)


def byte_level_files(vocab_size: int = 340, eos: str = "</s>") -> list[TokenizerFile]:
    """Byte-level BPE, as GPT-2's, Llama 3's or Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", eos],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return _files(tokenizer, eos)


def sentencepiece_files(vocab_size: int = 340, eos: str = "</s>") -> list[TokenizerFile]:
    """BPE over characters with a token for each byte of all others, as Llama 2's or Mistral's.

    It begins each text with a blank of its own.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", eos, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    words = [f"▁{word}" for sentence in SENTENCES for word in sentence.split()]
    tokenizer.normalizer, kept = normalizers.Sequence([]), tokenizer.normalizer
    tokenizer.train_from_iterator(words * 3, trainer)
    tokenizer.normalizer = kept
    document = json.loads(tokenizer.to_str())
    # As it is published: bytes are ordinary tokens, whatever they were called in training.
    document["added_tokens"] = [
        token for token in document["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return _files(Tokenizer.from_str(json.dumps(document)), eos)


def lowercasing(files: list[TokenizerFile]) -> list[TokenizerFile]:
    """The same tokenizer, but it changes what it reads."""
    tokenizer = Tokenizer.from_buffer(files[0].content)
    tokenizer.normalizer = normalizers.Lowercase()
    return [TokenizerFile(TOKENIZER_FILE, tokenizer.to_str().encode()), *files[1:]]


def _files(tokenizer: Tokenizer, eos: str) -> list[TokenizerFile]:
    config = {"bos_token": "<s>", "eos_token": eos}
    return [
        TokenizerFile(TOKENIZER_FILE, tokenizer.to_str().encode()),
        TokenizerFile(CONFIG_FILE, json.dumps(config).encode()),
    ]


@cache
def table_vocabulary() -> Vocabulary:
    """The table model's tokens as a target's."""
    return Vocabulary("the target", table_tokenizer_files())


class KnowingLaw:
    """A draft's law in other tokens, that knows what a target with the law `target` says greedily.

    Of the tokens that go on with that text the longest is the likeliest by far.
    """

    def __init__(self, target: TableLaw, vocabulary: Vocabulary) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary)

    def logits(self, token_ids: TokenIds, num_logits: int) -> Logits:
        """`[num_logits, V]`."""
        ends = range(len(token_ids) - num_logits + 1, len(token_ids) + 1)
        return np.stack([self._row([int(id) for id in token_ids[:end]]) for end in ends])

    def _row(self, token_ids: Sequence[int]) -> Logits:
        row = np.full(self.vocab_size, -10.0, np.float32)
        said = self._continuation(token_ids)
        for length in range(1, len(said) + 1):
            token_id = self._vocabulary.ids.get(said[:length])
            if token_id is not None:
                row[token_id] = 10.0 * length
        if not said:
            row[self._vocabulary.roles["eos_token"]] = 10.0
        return row

    def _continuation(self, token_ids: Sequence[int]) -> bytes:
        """The target's next bytes; nothing where it ends."""
        roles = {token_id: name for name, token_id in self._vocabulary.roles.items()}
        known: list[int] = []
        for token_id in token_ids:
            if token_id in roles:
                known.append(table_vocabulary().roles[roles[token_id]])
            known += self._vocabulary.token_bytes[token_id]
        said = b""
        while len(said) < 12:
            token_id = int(self._target.logits(np.array(known), 1)[0].argmax())
            if token_id >= 256:
                assert token_id == EOS_ID
                break
            known.append(token_id)
            said += bytes([token_id])
        return said
