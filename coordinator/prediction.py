"""Predicted Outputs: a text that the client expects, as drafts. Never changes the answer.

A prediction has a place as long as the answer follows it: the tokens behind that place are the
drafts. Where the answer leaves it, the place is looked for anew behind each token, by the last
tokens of the answer: a single one will do close behind where it was left, since most edits are
short, and elsewhere it takes three. Plain Python: knows no network and no text.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from coordinator.decode_loop import Committed, RoundPlan
from coordinator.decode_loop import Speculation as Policy
from coordinator.sequence import Sequence as TokenSequence
from paceline.rounds import Drafts

MIN_MATCH = 3
"""Tokens that tell a place. With two, a prediction that has nothing to do with the answer finds
three times as many places in vain; with four, edited code gets a tenth less."""
NEARBY = 4
"""Tokens behind the place where the answer left the prediction, where one token tells a place."""
MAX_MATCH = 16
"""Longer matches are not told apart."""
MAX_PLACES = 256
"""Places that one search looks at, which keeps the event loop free whatever a client predicts."""
LOOK_AGAIN_TOKENS = 2
"""For how many tokens the target goes on alone before the place is looked for again; a fourth of
those since the answer left the prediction, when that is more."""


class Prediction:
    """The predicted tokens of one choice, and where in them the answer is."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = array("I", token_ids)
        self._bytes = self._token_ids.tobytes()
        self._place: int | None = 0
        """Index of the token that follows; None: the answer is somewhere else."""
        self._left_at = 0
        """The last place."""
        self._num_seen = 0
        self._num_followed = 0
        """Tokens of the answer when it last had a place."""

    @property
    def num_astray(self) -> int:
        """Tokens of the answer since it left the prediction, as far as `drafts` has seen it."""
        return self._num_seen - self._num_followed

    def drafts(self, sequence: TokenSequence, num_wanted: int) -> Drafts:
        """Up to so many of the tokens that follow the answer so far; none without a place."""
        self._follow(sequence)
        if self._place is None:
            return Drafts()
        return Drafts(tuple(self._token_ids[self._place : self._place + num_wanted]))

    def _follow(self, sequence: TokenSequence) -> None:
        answer = sequence.log.token_ids[sequence.num_prompt_tokens :]
        if self._num_seen == len(answer):
            return
        for token_id in answer[self._num_seen :]:
            follows = self._place is not None and self._place < len(self._token_ids)
            if self._place is None or not follows or self._token_ids[self._place] != token_id:
                self._place = None
                break
            self._place += 1
            self._left_at = self._place
        self._num_seen = len(answer)
        if self._place is None:
            self._place = self._find(answer)
        if self._place is not None:
            self._left_at, self._num_followed = self._place, self._num_seen

    def _find(self, answer: "array[int]") -> int | None:
        """Behind the longest match of the last tokens; of equal ones the nearest, ahead first."""
        ahead = range(max(self._left_at, 1), self._left_at + NEARBY + 1)
        places = {place for place in ahead if self._token_ids[place - 1 : place] == answer[-1:]}
        places.update(islice(self._places_behind(answer[-MIN_MATCH:]), MAX_PLACES))

        def rank(place: int) -> tuple[int, bool, int]:
            distance = place - self._left_at
            return self._match_length(place, answer), distance >= 0, -abs(distance)

        return max(places, key=rank, default=None)

    def _places_behind(self, tokens: "array[int]") -> Iterator[int]:
        """Where `MIN_MATCH` tokens stand, those ahead first."""
        if len(tokens) < MIN_MATCH:
            return
        pattern, size = tokens.tobytes(), tokens.itemsize
        middle = self._left_at * size
        for start, end in ((middle, len(self._bytes)), (0, middle + len(pattern) - 1)):
            while (found := self._bytes.find(pattern, start, end)) >= 0:
                if found % size == 0:
                    yield found // size + len(tokens)
                start = found + 1

    def _match_length(self, place: int, answer: "array[int]") -> int:
        """How many of the last tokens stand before `place`, up to `MAX_MATCH`."""
        before = reversed(self._token_ids[max(place - MAX_MATCH, 0) : place])
        pairs = zip(before, reversed(answer[-MAX_MATCH:]), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class PredictedSpeculation:
    """Drafts from the prediction where it has a place and they pay, else as without one."""

    def __init__(
        self, prediction: Prediction, with_prediction: Policy, without_prediction: Policy
    ) -> None:
        self._prediction = prediction
        self._with_prediction = with_prediction
        self._without_prediction = without_prediction
        self._is_predicted = False

    def plan(self, sequence: TokenSequence) -> RoundPlan:
        """The next round."""
        self._is_predicted = False
        if sequence.num_new_tokens > 0 and self._prediction.drafts(sequence, 1).token_ids:
            plan = self._with_prediction.plan(sequence)
            if plan.num_speculative_tokens > 0:
                self._is_predicted = True
                drafts = self._prediction.drafts(sequence, plan.num_speculative_tokens)
                return replace(plan, drafts=drafts)
        plan = self._without_prediction.plan(sequence)
        num_alone = max(LOOK_AGAIN_TOKENS, self._prediction.num_astray // 4)
        return replace(plan, max_new_tokens=min(plan.max_new_tokens, num_alone))

    def choose(self, sequence: TokenSequence, drafts: Drafts) -> Drafts:
        """A prediction's drafts are as many as were planned."""
        return drafts if self._is_predicted else self._without_prediction.choose(sequence, drafts)

    def observe(self, sequence: TokenSequence, committed: Committed) -> None:
        """A pass of the target has come back."""
        if self._is_predicted:
            self._with_prediction.observe(sequence, committed)
        else:
            self._without_prediction.observe(sequence, committed)
