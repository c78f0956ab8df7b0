"""Grammars that answers are held to: the tokens that may stand behind the ones that are there.

A token is allowed when the text behind the prompt, with the bytes that it adds, is the beginning of
a text of the grammar: no token is preferred, and tokens that add nothing are never allowed. The
stop tokens of a sequence are what ends it, so they are allowed where the text is one of the grammar
(and those that are text wherever they go on with it); below `min_length` they are banned only
while something else is allowed, since a text that is complete cannot go on.

What is allowed depends on grammar, settings and tokens alone. A matcher remembers the tokens that
it has consumed, goes back to where the next ones differ and consumes the rest, so drafts, rejected
ones, resends and evictions need no care of their own. Knows nothing about logits or models.

The grammars are Lark texts as llguidance reads them. Compiling one may take a while and happens in
threads of its own.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import takewhile

import numpy as np
import tokenizers
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from paceline.engine.logits_processing import TokenMask
from paceline.engine.tokenizer_files import TOKENIZER_FILE, TokenizerFile
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings
from paceline.token_bytes import read_token_bytes
from paceline.token_log import common_length

_HEADER = '%llguidance {"no_forcing": true}\n'
"""Without it, where only one text can follow, its tokens would be the tokenizer's choice."""

MAX_COMPILED = 64
"""Grammars kept for the next request with the same one; the least recently used goes first."""
NUM_THREADS = 2


class GrammarState:
    """One grammar behind the prompt of one sequence."""

    def __init__(self, matcher: LLMatcher, settings: SequenceSettings, vocab_size: int) -> None:
        """`matcher` has consumed nothing; its end token is `vocab_size`, which no model says."""
        self.settings = settings
        self._unused = matcher
        self._matcher = matcher.deep_copy()
        self._vocab_size = vocab_size
        self._consumed = array("I")
        self._bits = np.zeros(vocab_size // 32 + 1, np.int32)

    def reach(self, context: "array[int]") -> int:
        """How many of the tokens, prompt included, lie on a path of the grammar."""
        wanted = context[self.settings.prompt_length :]
        if self._matcher.is_error():
            # The path of some draft was too complex; this one may be another.
            self._matcher, self._consumed = self._unused.deep_copy(), array("I")
        common = common_length(self._consumed, wanted)
        if common < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - common)
            del self._consumed[common:]
        # A foreign draft may be any number; the matcher would break at one that it does not know.
        known = takewhile(lambda token_id: token_id < self._vocab_size, wanted[common:])
        num_new = self._matcher.try_consume_tokens(list(known))
        self._consumed.extend(wanted[common : common + num_new])
        return self.settings.prompt_length + len(self._consumed)

    def allowed(self, context: "array[int]") -> TokenMask:
        """The tokens that may follow `context`, all tokens of the sequence up to there.

        Raises `InvalidRequest` when the grammar is too complex to say, or has been left already.
        """
        reached = self.reach(context)
        self._must_not_have_failed(reached)
        if reached < len(context):
            raise InvalidRequest(
                f"span: the token {context[reached]} at position {reached} does not go on with "
                "the grammar; expected tokens that do",
            )
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._must_not_have_failed(len(context))
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        mask: TokenMask = bits[: self._vocab_size].view(np.bool_)
        self._place_stops(mask, bool(bits[self._vocab_size]), len(context))
        return mask

    def _must_not_have_failed(self, position: int) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(
                f"grammar: cannot be followed at position {position}: "
                f"{_first_line(self._matcher.get_error())}"
            )

    def _place_stops(self, mask: TokenMask, may_end: bool, position: int) -> None:
        stop_ids = [id for id in self.settings.stop_token_ids if id < self._vocab_size]
        if position < self.settings.min_length:
            others = mask.copy()
            others[stop_ids] = False
            if others.any():
                mask[stop_ids] = False
                return
        if may_end:
            mask[stop_ids] = True


class Grammars:
    """The grammars of one worker's sequences."""

    def __init__(self, token_bytes: Sequence[bytes], vocab_size: int) -> None:
        """`token_bytes`: what each token adds to a text. `vocab_size`: of the model."""
        # A model may lack tokens of its tokenizer, and a tokenizer those that pad a model.
        known = [*token_bytes, *[b""] * vocab_size][:vocab_size]
        self._vocab_size = vocab_size
        self._vocabulary = _Vocabulary([*known, b""], vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    @classmethod
    def of_tokenizer(cls, files: Sequence[TokenizerFile], vocab_size: int) -> "Grammars":
        """For a model with this tokenizer."""
        content = next(file.content for file in files if file.name == TOKENIZER_FILE)
        backend = tokenizers.Tokenizer.from_buffer(content)
        return cls(read_token_bytes(content, backend), vocab_size)

    def begin(self, grammar: str) -> None:
        """Let a grammar be compiled, if it is new. "" is none."""
        if grammar:
            self._future(grammar)

    def is_ready(self, grammar: str) -> bool:
        """Whether `state` will not block."""
        return not grammar or self._future(grammar).done()

    def wait(self, grammars: Iterable[str], timeout_s: float) -> bool:
        """Block until one of these is compiled; False when there is none, or after the time-out."""
        futures = [self._future(grammar) for grammar in grammars if grammar]
        return bool(futures) and bool(wait(futures, timeout_s, return_when="FIRST_COMPLETED").done)

    def state(
        self, settings: SequenceSettings, known: GrammarState | None = None
    ) -> GrammarState | None:
        """The state of a sequence with these settings; None without a grammar.

        `known` is what was given for the sequence before. Raises `InvalidRequest` when the grammar
        cannot be compiled.
        """
        if not settings.grammar:
            return None
        if known is not None and known.settings is settings:
            return known
        compiled = self._future(settings.grammar)
        # An error of its own for each sequence: one that is kept and raised again would keep all
        # that its callers held.
        match compiled.exception():
            case None:
                return GrammarState(compiled.result(), settings, self._vocab_size)
            case InvalidRequest(message=message):
                raise InvalidRequest(message)
            case error:  # of one sequence; the pass of the others must go on
                raise InvalidRequest(f"grammar: cannot be used: {error!r}")

    def _future(self, grammar: str) -> "Future[LLMatcher]":
        if grammar not in self._compiled:
            self._compiled[grammar] = self._threads.submit(self._compile, grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar]

    def _compile(self, grammar: str) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                TokenizerWrapper(self._vocabulary), eos_token=self._vocab_size
            )
        matcher = LLMatcher(self._tokenizer, _HEADER + grammar, log_level=0)
        probe = matcher.deep_copy()
        if not probe.is_error():
            probe.compute_bitmask()  # finds out whether there is any text
        if probe.is_error():
            raise InvalidRequest(f"grammar: cannot be used: {_first_line(probe.get_error())}")
        return matcher


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = [id for id, token in enumerate(tokens) if not token]

    def __call__(self, text: bytes | str) -> list[int]:
        return []  # asked for only where tokens are forced


def _first_line(message: str) -> str:
    """What llguidance says about an error, without the state that it shows behind it."""
    return message.partition("\n")[0]
