"""The steps of an answer, and that a client which resumes gets exactly what it lacks."""

import codecs
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_tokenizers import table_tokenizer

from coordinator.progress import Progress
from coordinator.requests import FinishReason, Generation, GenerationRequest, GenerationStep
from coordinator.scored_tokens import ScoredToken
from coordinator.text_stream import TextStream
from coordinator.token_speller import TokenSpeller
from paceline.rounds import TokenLogprobs

ALPHABET = [*b"ab", *"é🙂".encode(), 257]
EOS = 257


@dataclass
class Run:
    """One run of an answer, as its client sees it."""

    token_ids: list[int]
    sizes: list[int]
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = (EOS,)
    resume_from: int = 0
    steps: list[GenerationStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = GenerationRequest("r", ())
        generation = Generation(request, (), 0, len(self.token_ids), 0)
        text = TextStream(table_tokenizer(), self.stop, self.stop_token_ids)
        speller = TokenSpeller(table_tokenizer())
        progress = Progress(generation, text, self.resume_from, speller=speller)
        position = 0
        for size in self.sizes:
            block = tuple(self.token_ids[position : position + size])
            logprobs = [self.logprobs(position + index) for index in range(len(block))]
            position += size
            step = progress.advance(block, position >= len(self.token_ids), logprobs)
            if step is not None:
                self.steps.append(step)
            if progress.finish_reason is not None:
                break
        assert generation.num_committed_tokens == self.steps[-1].num_committed_tokens

    def logprobs(self, position: int) -> TokenLogprobs | None:
        """A number by which a token is known again; those that the client has are not scored."""
        is_known = position < self.resume_from
        return None if is_known else TokenLogprobs(-float(position), (97,), (-0.5,))

    @property
    def scored(self) -> list[ScoredToken]:
        return [scored for step in self.steps for scored in step.logprobs]

    @property
    def said(self) -> list[int]:
        return [token_id for step in self.steps for token_id in step.token_ids]

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)


def cut(draw: st.DrawFn, length: int) -> list[int]:
    cuts = sorted(draw(st.sets(st.integers(1, length), max_size=6)) | {length})
    return [end - start for start, end in zip([0, *cuts], cuts, strict=False)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, list[int]]:
    """A whole answer in some rounds, and other rounds for the one that resumes it."""
    token_ids = draw(st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=16))
    stop = tuple(draw(st.lists(st.text("abé🙂\ufffd", min_size=1, max_size=3), max_size=2)))
    stop_token_ids = draw(st.sampled_from([(), (EOS,), (EOS, ord("b"))]))
    run = Run(token_ids, cut(draw, len(token_ids)), stop, stop_token_ids)
    return run, cut(draw, len(token_ids))


@given(runs())
def test_a_client_that_resumes_anywhere_has_no_gap_and_no_repetition(
    case: tuple[Run, list[int]],
) -> None:
    run, sizes = case
    for num_steps, step in enumerate(run.steps, start=1):
        resumed = Run(run.token_ids, sizes, run.stop, run.stop_token_ids, step.num_committed_tokens)
        had = run.steps[:num_steps]
        assert [id for s in had for id in s.token_ids] + resumed.said == run.said
        assert "".join(s.text for s in had) + resumed.text == run.text
        last, first_last = resumed.steps[-1], run.steps[-1]
        assert last.finish_reason is first_last.finish_reason
        assert last.num_committed_tokens == first_last.num_committed_tokens


@given(runs())
def test_every_token_has_its_own_log_probability_and_the_place_where_it_begins(
    case: tuple[Run, list[int]],
) -> None:
    run, sizes = case
    for index, scored in enumerate(run.scored):
        assert scored.token.token_id == run.said[index]
        assert scored.logprob == -index
        before = b"".join(map(table_tokenizer().token_bytes, run.said[:index]))
        assert scored.text_offset == len(codecs.utf_8_decode(before, "replace", False)[0])
    for num_steps, step in enumerate(run.steps, start=1):
        assert [scored.token.token_id for scored in step.logprobs] == list(step.token_ids)
        resumed = Run(run.token_ids, sizes, run.stop, run.stop_token_ids, step.num_committed_tokens)
        had = [scored for step in run.steps[:num_steps] for scored in step.logprobs]
        assert had + resumed.scored == run.scored


@given(runs())
def test_rounds_cut_anywhere_make_the_same_answer(case: tuple[Run, list[int]]) -> None:
    run, sizes = case
    other = Run(run.token_ids, sizes, run.stop, run.stop_token_ids)
    assert (other.said, other.text) == (run.said, run.text)
    assert other.steps[-1].finish_reason is run.steps[-1].finish_reason


@given(runs())
def test_only_the_last_step_has_a_reason_and_every_other_one_has_tokens(
    case: tuple[Run, list[int]],
) -> None:
    *others, last = case[0].steps
    assert all(step.finish_reason is None and step.token_ids for step in others)
    assert last.finish_reason is not None


@pytest.mark.parametrize(
    ("token_ids", "reason", "text"),
    [
        ([*b"ab"], FinishReason.LENGTH, "ab"),
        ([*b"a", EOS, *b"b"], FinishReason.STOP, "a"),
        ([*b"a", EOS], FinishReason.STOP, "a"),
        ([*b"aba"], FinishReason.STOP, "a"),
        ([*b"a", 0xC3], FinishReason.LENGTH, "a\ufffd"),
    ],
    ids=["limit", "stop token", "stop token in the last place", "stop text", "half a character"],
)
def test_an_answer_ends_for_a_reason(token_ids: list[int], reason: FinishReason, text: str) -> None:
    stop = ("ba",)
    run = Run(token_ids, [len(token_ids)], stop)
    assert run.steps[-1].finish_reason is reason
    assert run.text == text


def test_a_client_that_has_everything_gets_the_end_alone() -> None:
    run = Run([*b"aa", 0xC3], [3], resume_from=3)
    assert run.steps == [GenerationStep((), "", 3, FinishReason.LENGTH)]
