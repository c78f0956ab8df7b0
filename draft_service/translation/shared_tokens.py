"""What two vocabularies have in common, and whether that is enough to draft with.

Token-level intersection (arXiv 2502.05202): the draft proposes only what is a token of both, so
each of its rows becomes a row over the target's tokens, with minus infinity where it has none, and
all that is done with rows (noise, penalties, grammars, laws) is done over the target's ids.
"""

from itertools import accumulate, pairwise

import numpy as np

from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.model import Logits

MIN_AGREEMENT = 0.9
"""Below this agreement drafts go through text. A judgement: where one token in ten is split
otherwise, about every fourth round of three drafts meets one that both do not have."""
_SAMPLE = """The quickest way to learn how something works is to take it apart; putting it together
again takes longer. In 1969, about 650 million people watched the first landing on the Moon.
Here are three steps to follow:
1. **Preheat** the oven to 180 °C (350 °F).
2. Mix two cups of flour with a teaspoon of baking powder, and don't stir too long.
3. Serve immediately, e.g. with strawberries.

def mean(values: list[float]) -> float:
    total = sum(value for value in values if value is not None)
    return total / max(len(values), 1)

Die Geschichte der Wissenschaft beginnt mit Fragen. Où est la bibliothèque municipale? El
conocimiento no ocupa lugar. Therefore, x² + 2x + 1 = (x + 1)², which is what we wanted to show.
"""
"""Some of the kinds of text that models are asked for."""


class SharedTokens:
    """The tokens that two vocabularies have in common, as pairs of ids."""

    def __init__(self, target: Vocabulary, draft: Vocabulary, draft_vocab_size: int) -> None:
        """`draft_vocab_size`: of the draft's model, which may lack tokens of its tokenizer."""
        pairs = {
            target_id: draft.ids[written]
            for written, target_id in target.ids.items()
            if written in draft.ids
        }
        pairs |= special_pairs(target, draft)
        known = [(t, d) for t, d in sorted(pairs.items()) if d < draft_vocab_size]
        self.draft_id = dict(known)
        """By the target's."""
        self._target_ids = np.array([t for t, _ in known], np.int64)
        self._draft_ids = np.array([d for _, d in known], np.int64)
        self._num_target = len(target)

    def __len__(self) -> int:
        return len(self.draft_id)

    def row(
        self,
        logits: Logits,  # [draft's V]
    ) -> Logits:
        """The same over the target's tokens `[V]`."""
        row = np.full(self._num_target, -np.inf, np.float32)
        row[self._target_ids] = logits[self._draft_ids]
        return row


def special_pairs(source: Vocabulary, other: Vocabulary) -> dict[int, int]:
    """Special tokens that are written alike in both, or begin or end a text in both."""
    by_name = {name: token_id for token_id, name in other.special.items()}
    by_role = {
        token_id: other.roles[role]
        for role, token_id in source.roles.items()
        if role in other.roles
    }
    by_content = {
        token_id: by_name[name] for token_id, name in source.special.items() if name in by_name
    }
    return by_role | by_content


def agreement(target: Vocabulary, draft: Vocabulary) -> float:
    """Share of the target's tokens of a sample that the draft's tokenizer splits off just so.

    That two vocabularies have most tokens in common says little: the draft writes a word in the
    way that it has learnt, and when it is one token there and two here it has to say it otherwise.
    """
    of_target, of_draft = (_places(vocabulary) for vocabulary in (target, draft))
    return len(of_target & of_draft) / len(of_target)


def _places(vocabulary: Vocabulary) -> set[tuple[int, int]]:
    """Where each token of the sample begins and ends."""
    lengths = [len(vocabulary.token_bytes[id]) for id in vocabulary.encode(_SAMPLE.encode())]
    return set(pairwise(accumulate(lengths, initial=0)))
