"""With speculation the answer is the same, token by token, as without.

On the default model and real processes. How a draft works, how many drafts there are, how many
requests run at once and how tokens are chosen are combined in pairs: every value of one meets every
value of each other.
"""

from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from answers import OFF, Answer, Body, FrontEnd, ask_all, check_equal, drafts
from company import company
from conftest import KV_CACHE_TOKENS
from pairwise import pairwise_cover
from processes import Coordinator, Processes, Stack, Worker
from prompts import read_prompts
from undisturbed import NUM_TRIES, undisturbed_answer

pytestmark = pytest.mark.timeout(900)

# In an order that never lets the most drafts of the slowest meet requests that run one by one.
FACTORS: dict[str, tuple[object, ...]] = {
    "num_drafts": (5, 8, 1, 3),
    "drafter": ("self", "suffix", "draft-model"),
    "concurrency": (8, 1),
    "temperature": (0.0, 0.8),
    "has_company": (True, False),
}
NUM_PROMPTS = 8
NUM_TOKENS = 24


COVER = pairwise_cover(*FACTORS.values())
assert len(COVER) == 12, "as few as four numbers and three methods allow"


def body(prompt: str, seed: int, temperature: float, num_tokens: int) -> Body:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": temperature,
        "seed": seed,
        "max_tokens": num_tokens,
    }


class Expected:
    """Answers without speculation, made when they are first wanted."""

    def __init__(self, coordinator: Coordinator, num_prompts: int, num_tokens: int) -> None:
        self._coordinator = coordinator
        self._prompts = read_prompts(num_prompts)
        self._num_tokens = num_tokens
        self._answers: dict[float, list[Answer]] = {}

    def bodies(self, temperature: float) -> list[Body]:
        """One for each prompt, with a seed of its own."""
        return [
            body(prompt, seed, temperature, self._num_tokens)
            for seed, prompt in enumerate(self._prompts)
        ]

    async def answers(self, temperature: float) -> list[Answer]:
        """One for each body."""
        if temperature not in self._answers:
            plain = [{**body, "speculation": OFF} for body in self.bodies(temperature)]
            self._answers[temperature] = await ask_all(self._coordinator, plain, concurrency=4)
        return self._answers[temperature]

    async def check(
        self,
        temperature: float,
        drafter: str,
        num_drafts: int,
        concurrency: int,
        has_company: bool,
    ) -> None:
        """Ask again with these drafts: all, or one half or the other where it is one by one.

        With company, requests of other kinds run in the same batches. On a busy machine every
        draft may come late, so that none is checked: then the same is asked again, of workers that
        have read the prompts by now.
        """
        expected = await self.answers(temperature)
        speculation = drafts(drafter, num_drafts)
        bodies = [{**body, "speculation": speculation} for body in self.bodies(temperature)]
        numbers = list(range(len(bodies)))
        if concurrency == 1:
            half = len(bodies) // 2
            numbers = numbers[:half] if temperature else numbers[half:]
        wanted = [bodies[number] for number in numbers]
        for _ in range(NUM_TRIES):
            async with company(self._coordinator) if has_company else nullcontext():
                answers = await ask_all(self._coordinator, wanted, concurrency)
            for number, answer in zip(numbers, answers, strict=True):
                what = f"prompt {number} with {num_drafts} drafts by {drafter}"
                check_equal(answer, expected[number], what)
            if sum(answer.speculation["num_draft_tokens"] for answer in answers) > 0:
                return
        pytest.fail(f"in {NUM_TRIES} tries no draft was checked, so nothing was tested")


@pytest.fixture(scope="module")
def expected(model_stack: Stack) -> Expected:
    return Expected(model_stack.coordinator, NUM_PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize(tuple(FACTORS), COVER)
async def test_drafts_change_nothing_of_an_answer(
    expected: Expected,
    num_drafts: int,
    drafter: str,
    concurrency: int,
    temperature: float,
    has_company: bool,
) -> None:
    await expected.check(temperature, drafter, num_drafts, concurrency, has_company)


@pytest.fixture(scope="module")
def long_expected(model_stack: Stack) -> Expected:
    return Expected(model_stack.coordinator, 60, 128)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(tuple(FACTORS), COVER)
async def test_drafts_change_nothing_of_many_long_answers(
    long_expected: Expected,
    num_drafts: int,
    drafter: str,
    concurrency: int,
    temperature: float,
    has_company: bool,
) -> None:
    await long_expected.check(temperature, drafter, num_drafts, concurrency, has_company)


@pytest.fixture(scope="module")
def bfloat16_expected(processes: Processes, model_workers: dict[str, Worker]) -> Iterable[Expected]:
    """A target in bfloat16 with the drafts of the other one, which are in float32."""
    target = processes.target(dtype="bfloat16", kv_cache_tokens=KV_CACHE_TOKENS)
    drafts = {name: model_workers[name] for name in ("suffix", "draft-model", "self")}
    stack = processes.stack(target, drafts)
    yield Expected(stack.coordinator, 3, NUM_TOKENS)
    stack.coordinator.stop()
    target.stop()


@pytest.mark.parametrize(
    ("drafter", "num_drafts", "concurrency", "temperature", "has_company"),
    [
        ("suffix", 8, 1, 0.0, False),
        ("draft-model", 3, 8, 0.8, True),
        ("self", 5, 8, 0.0, False),
    ],
)
async def test_drafts_change_nothing_of_an_answer_in_bfloat16(
    bfloat16_expected: Expected,
    num_drafts: int,
    drafter: str,
    concurrency: int,
    temperature: float,
    has_company: bool,
) -> None:
    await bfloat16_expected.check(temperature, drafter, num_drafts, concurrency, has_company)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_target_as_its_own_draft_is_accepted_from_the_first_window_on(
    model_stack: Stack, temperature: float
) -> None:
    coordinator = model_stack.coordinator
    request = body("Name the days of the week.", 5, temperature, 24)
    request |= {"ignore_eos": True, "speculation": drafts("self", 5)}
    answer = await undisturbed_answer(coordinator, request, FrontEnd.HTTP_STREAM)
    # The last token of every window is the target's own, and the last window is cut short.
    assert [len(part.token_ids) for part in answer.parts] == [1, 6, 6, 6, 5]
    assert answer.speculation["draft_acceptance_rate"] == 1.0
    assert answer.speculation["num_accepted_draft_tokens"] == 19
