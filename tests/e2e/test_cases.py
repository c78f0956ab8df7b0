"""Faults that users of other engines reported, each as a case to pass here (CASES.md).

Every request is made without drafts first; then with several methods and numbers of drafts, each
over HTTP, as an HTTP stream and over gRPC. All must agree on text, token ids, finish reason and
usage. A bias of 100 for one token makes answers that are known in advance, whatever the weights.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence

import pytest
from answers import OFF, Answer, Body, FrontEnd, ask, ask_all, check_equal, drafts, events, post
from conftest import TABLE
from observed import is_idle, load, metrics, soon
from processes import Coordinator, Processes, Stack
from real_tokenizers import smollm2_tokenizer, table_tokenizer

from paceline.engine.table_model import EOS_ID

pytestmark = pytest.mark.timeout(300)

MODES = (
    drafts("prompt-lookup", 1),
    drafts("prompt-lookup", 3),
    drafts("prompt-lookup", 8),
    drafts("draft-model", 4),
)
HA, ONE, HALF_SMILE, OTHER_HALF = 421, 33, 10813, 38887
"""Tokens of the default model: " ha", "1", and the two of a smiling face."""
SMILES = "🙂" * 8
# Of the two halves that are favoured the model itself takes the one that fits.
ONLY_SMILES: Body = {"temperature": 0, "logit_bias": {str(HALF_SMILE): 60, str(OTHER_HALF): 60}}
REPLACEMENT = "\ufffd"


def force(token_id: int) -> Body:
    """Settings with which every token of the answer is this one."""
    return {"temperature": 0, "logit_bias": {str(token_id): 100}}


async def ask_every_way(
    coordinator: Coordinator,
    body: Body,
    modes: Sequence[Body] = MODES,
    front_ends: Sequence[FrontEnd] = tuple(FrontEnd),
) -> Answer:
    """The one answer that comes whatever the drafts and the way to ask."""
    plain = await ask(coordinator, {**body, "speculation": OFF})
    ways = [*itertools.product((OFF, *modes), front_ends)]
    answers = await asyncio.gather(
        *(ask(coordinator, {**body, "speculation": mode}, end) for mode, end in ways)
    )
    for (mode, front_end), answer in zip(ways, answers, strict=True):
        check_equal(answer, plain, f"{body} with {mode} over {front_end.value}")
    return plain


# A. Stops, EOS and length limits inside an accepted block


@pytest.mark.parametrize(("stop", "text"), [([" ha"], ""), ("h", " "), (["xyz", "ha"], " ")])
async def test_a_stop_at_the_start_of_a_long_block_is_seen(
    model_stack: Stack, stop: str | list[str], text: str
) -> None:
    """CASES 3."""
    body = {"prompt": " ha ha ha", **force(HA), "stop": stop, "max_tokens": 64}
    modes = (*MODES, drafts("prompt-lookup", 16), drafts("self", 16))
    answer = await ask_every_way(model_stack.coordinator, body, modes)
    assert (answer.text, answer.num_completion_tokens, answer.finish_reason) == (text, 1, "stop")


async def test_tokens_behind_a_stop_are_not_returned(model_stack: Stack) -> None:
    """CASES 4, without log-probabilities."""
    body = {"prompt": "11111", **force(ONE), "stop": ["111"], "max_tokens": 5}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert answer.token_ids == (ONE, ONE, ONE)
    assert (answer.text, answer.num_completion_tokens) == ("", 3)


@pytest.mark.parametrize("drafter", ["prompt-lookup", "draft-model", "self"])
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
async def test_max_tokens_is_met_exactly_wherever_it_cuts_a_block(
    table_stack: Stack, drafter: str, num_drafts: int
) -> None:
    """CASES 5."""
    coordinator = table_stack.coordinator
    body = {"prompt": "to be or not to be or not", "temperature": 0, "ignore_eos": True}
    longest = 2 * num_drafts + 3
    plain = await ask(coordinator, {**body, "max_tokens": longest, "speculation": OFF})
    for max_tokens in range(1, longest + 1):
        before = await metrics(coordinator)
        request = {**body, "max_tokens": max_tokens, "speculation": drafts(drafter, num_drafts)}
        answers = await asyncio.gather(*(ask(coordinator, request, end) for end in FrontEnd))
        for answer in answers:
            assert answer.token_ids == plain.token_ids[:max_tokens]
            assert answer.num_completion_tokens == max_tokens
            assert answer.finish_reason == "length"
        after = await metrics(coordinator)
        num_counted = after["generation_tokens_total"] - before["generation_tokens_total"]
        assert num_counted == len(answers) * max_tokens
    await soon(lambda: is_idle(coordinator), "no sequence is left behind, not at the draft either")


async def test_nothing_of_a_stop_text_is_sent_before_it_is_complete(model_stack: Stack) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["11111"], "max_tokens": 50}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert (answer.text, answer.finish_reason) == ("", "stop")
    assert answer.num_completion_tokens == 5


async def test_the_beginning_of_a_stop_text_is_sent_when_the_answer_ends_there(
    model_stack: Stack,
) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["11112"], "max_tokens": 6}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert (answer.text, answer.finish_reason) == ("111111", "length")


@pytest.mark.parametrize("front_end", [FrontEnd.HTTP_STREAM, FrontEnd.GRPC])
@pytest.mark.parametrize("speculation", [OFF, *MODES], ids=str)
async def test_no_more_is_held_back_than_may_begin_a_stop_text(
    model_stack: Stack, speculation: Body, front_end: FrontEnd
) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["10"], "max_tokens": 9}
    answer = await ask(model_stack.coordinator, {**body, "speculation": speculation}, front_end)
    assert (answer.text, answer.finish_reason) == ("1" * 9, "length")
    num_tokens = num_characters = 0
    for part in answer.parts:
        num_tokens += len(part.token_ids)
        num_characters += len(part.text)
        assert num_tokens - 1 <= num_characters <= num_tokens


@pytest.mark.parametrize("stop", ["x", ["x"], [], None])
async def test_every_form_of_the_stop_field_is_understood(
    table_stack: Stack, stop: str | list[str] | None
) -> None:
    """CASES 7."""
    body = {"prompt": "stop", **force(ord("x")), "max_tokens": 4}
    answer = await ask_every_way(table_stack.coordinator, {**body, "stop": stop})
    absent = await ask(table_stack.coordinator, body)
    assert absent.text == "xxxx"
    assert answer.text == ("" if stop else "xxxx")


@pytest.mark.parametrize("stop", [[""], "", ["a", "b", "c", "d", "e"]])
async def test_stop_fields_that_cannot_work_are_refused_by_name(
    table_stack: Stack, stop: str | list[str]
) -> None:
    """CASES 7."""
    body = {"prompt": "stop", "stop": stop, "max_tokens": 4}
    response = await post(table_stack.coordinator, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stop"


async def test_a_stop_text_that_spans_two_tokens_is_found(model_stack: Stack) -> None:
    """CASES 7."""
    body = {"prompt": SMILES, **ONLY_SMILES, "max_tokens": 12}
    coordinator = model_stack.coordinator
    free = await ask_every_way(coordinator, body)
    assert free.text == "🙂" * 6
    stopped = await ask_every_way(coordinator, {**body, "stop": "🙂"})
    assert (stopped.text, stopped.token_ids) == ("", (HALF_SMILE, OTHER_HALF))
    later = await ask_every_way(coordinator, {**body, "stop": ["🙂🙂🙂"]})
    assert (later.text, later.num_completion_tokens, later.finish_reason) == ("", 6, "stop")


# C. Sampling parameters at the verify step


async def test_a_bias_counts_for_drafted_tokens_too(model_stack: Stack) -> None:
    """CASES 13."""
    body = {"prompt": " ha" * 8, **force(ONE), "max_tokens": 12}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert answer.text == "1" * 12
    request = {**body, "speculation": drafts("prompt-lookup", 4)}
    stream = await ask(model_stack.coordinator, request, FrontEnd.HTTP_STREAM)
    # Until the answer repeats itself, nothing that is copied can be accepted.
    assert [len(part.token_ids) for part in stream.parts[:3]] == [1, 1, 1]


async def test_a_banned_token_never_appears_however_often_it_is_drafted(
    model_stack: Stack,
) -> None:
    """CASES 13."""
    body = {
        "prompt": " ha" * 8,
        "temperature": 0,
        "logit_bias": {str(HA): -100},
        "max_tokens": 32,
    }
    answer = await ask_every_way(model_stack.coordinator, body)
    assert HA not in answer.token_ids


async def test_a_first_draft_is_never_committed_unverified(model_stack: Stack) -> None:
    """CASES 14."""
    body = {"prompt": "A B C D A B C D A B C", **force(ONE), "max_tokens": 10}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert answer.text == "1" * 10


@pytest.mark.parametrize(
    "prompt",
    ["A B C D A B C D A B C", "1 2 3 1 2 3 1 2", "yes no yes no yes", "x = x + 1\n" * 4],
)
async def test_prompts_that_loop_go_on_as_without_drafts(model_stack: Stack, prompt: str) -> None:
    """CASES 14."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24}
    await ask_every_way(model_stack.coordinator, body, front_ends=[FrontEnd.HTTP])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-6},
        {"temperature": 1e-5},
        {"temperature": 1e-4},
        {"temperature": 1.7, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
    ],
    ids=str,
)
async def test_settings_that_leave_one_token_are_greedy_for_every_seed(
    table_stack: Stack, settings: Body
) -> None:
    """CASES 15."""
    body = {"prompt": "Once upon", "max_tokens": 24, "ignore_eos": True}
    greedy = await ask(table_stack.coordinator, {**body, "temperature": 0, "speculation": OFF})
    for seed in range(3):
        sampled = await ask_every_way(
            table_stack.coordinator, {**body, **settings, "seed": seed}, modes=MODES[2:]
        )
        check_equal(sampled, greedy, f"{settings} with seed {seed}")


async def test_greedy_answers_stay_greedy_beside_sampled_ones(table_stack: Stack) -> None:
    """CASES 15."""
    coordinator = table_stack.coordinator
    common = {"prompt": "The king said", "max_tokens": 60, "ignore_eos": True}
    greedy = {**common, "temperature": 0}
    plain = await ask(coordinator, {**greedy, "speculation": OFF})
    before = await metrics(coordinator)
    for speculation in (OFF, *MODES):
        sampled = [{**common, "temperature": 1.0, "seed": seed} for seed in range(4)]
        bodies = [{**body, "speculation": speculation} for body in [greedy] * 4 + sampled]
        answers = await ask_all(coordinator, bodies, concurrency=8)
        for answer in answers[:4]:
            check_equal(answer, plain, f"greedy beside sampled, {speculation}")
        assert len({answer.token_ids for answer in answers[4:]}) == 4
    after = await metrics(coordinator)
    fallen = [name for name in before if name.endswith("_total") and after[name] < before[name]]
    assert fallen == []


@pytest.mark.parametrize("settings", [{}, {"top_k": 50}], ids=str)
async def test_answers_without_a_seed_are_as_various_with_drafts_as_without(
    table_stack: Stack, settings: Body
) -> None:
    """CASES 16."""
    num_distinct = []
    for speculation in (OFF, drafts("prompt-lookup", 4), drafts("draft-model", 4)):
        body = {"prompt": "Once upon a time", "max_tokens": 8, **settings}
        bodies = [{**body, "speculation": speculation}] * 40
        answers = await ask_all(table_stack.coordinator, bodies, concurrency=8)
        num_distinct.append(len({answer.token_ids for answer in answers}))
    plain, *others = num_distinct
    assert plain > 10
    assert all(0.7 * plain <= other <= 1.3 * plain for other in others), num_distinct


# F. UTF-8 and the stream protocol


async def test_half_characters_at_the_end_are_replaced_and_not_lost(model_stack: Stack) -> None:
    """CASES 25 a."""
    body = {"prompt": "🙂", **force(HALF_SMILE), "max_tokens": 3}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert answer.text == 3 * REPLACEMENT


async def test_an_answer_that_is_cut_inside_a_character_says_so_at_its_end_only(
    model_stack: Stack,
) -> None:
    """CASES 25 d."""
    body = {"prompt": SMILES, **ONLY_SMILES, "max_tokens": 5}
    answer = await ask_every_way(model_stack.coordinator, body)
    assert answer.text == "🙂🙂" + REPLACEMENT


@pytest.mark.parametrize(
    "prompt", [SMILES, "e\u0301é" * 6, "🇩🇪🇫🇷" * 4, "👩‍🚀" * 4, "東京안녕" * 3], ids=ascii
)
async def test_text_is_the_decoded_ids_wherever_blocks_cut_a_character(
    model_stack: Stack, prompt: str
) -> None:
    """CASES 25 b and c."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 15}
    # An odd number of drafts cuts pairs.
    modes = (OFF, drafts("prompt-lookup", 3), drafts("draft-model", 4))
    ways = [*itertools.product(modes, FrontEnd)]
    answers = await asyncio.gather(
        *(ask(model_stack.coordinator, {**body, "speculation": mode}, end) for mode, end in ways)
    )
    whole = smollm2_tokenizer().decode(answers[0].token_ids)
    assert answers[0].text == whole
    for (mode, front_end), answer in zip(ways, answers, strict=True):
        check_equal(answer, answers[0], f"{mode} over {front_end.value}")
        before_last = "".join(part.text for part in answer.parts[:-1])
        assert whole.startswith(before_last), "text was sent that had to be taken back"


@pytest.mark.parametrize(
    "prompt", [{"prompt": "Once"}, {"messages": [{"role": "user", "content": "Hi"}]}]
)
@pytest.mark.parametrize("speculation", [OFF, drafts("draft-model", 4)], ids=str)
async def test_a_stream_ends_once_with_reason_usage_and_done(
    table_stack: Stack, prompt: Body, speculation: Body
) -> None:
    """CASES 26."""
    body = {**prompt, "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    body["speculation"] = speculation
    request = {**body, "stream_options": {"include_usage": True}}
    received = [event async for event in events(table_stack.coordinator, request)]
    assert received.pop() == "[DONE]"
    *chunks, last = map(json.loads, received)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 30
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    if "messages" in body:
        assert ["role" in choice["delta"] for choice in choices] == [
            index == 0 for index in range(len(choices))
        ]
    text = "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in choices
    )
    assert text == (await ask(table_stack.coordinator, body)).text


# G. Context limits, degenerate prompts


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [1]},
        {"prompt": "A"},
        {"prompt": "<|im_end|>", "ignore_eos": True},
        {"prompt": [2]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": []},
    ],
    ids=str,
)
async def test_a_degenerate_prompt_is_refused_or_answered_as_without_drafts(
    model_stack: Stack, prompt: Body
) -> None:
    """CASES 31."""
    coordinator = model_stack.coordinator
    body = {**prompt, "temperature": 0, "max_tokens": 8}
    response = await post(coordinator, body)
    if response.status_code == 400:
        assert response.json()["error"]["param"] in ("prompt", "messages")
    else:
        assert response.status_code == 200
        await ask_every_way(coordinator, body, modes=MODES[2:])
    usual = {"prompt": "A B C D A B C", "temperature": 0, "max_tokens": 8}
    await ask_every_way(coordinator, usual, modes=MODES[2:], front_ends=[FrontEnd.HTTP])


@pytest.mark.parametrize("prompt", ["", [], [256], "a", "<|eos|>"])
async def test_a_prompt_shorter_than_what_is_looked_up_is_no_trouble(
    table_stack: Stack, prompt: str | list[int]
) -> None:
    """CASES 31."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    if prompt == []:
        assert (await post(table_stack.coordinator, body)).status_code == 400
    else:
        await ask_every_way(table_stack.coordinator, body)


@pytest.mark.parametrize("too_long", [{"max_tokens": 5000}, {"prompt": "a" * 4096}], ids=str)
async def test_what_is_longer_than_the_context_is_refused_with_the_limit(
    table_stack: Stack, too_long: Body
) -> None:
    body = {"prompt": "Once", "max_tokens": 8, **too_long}
    response = await post(table_stack.coordinator, body)
    assert response.status_code == 400
    assert "4096" in response.json()["error"]["message"]


# H. KV rollback, draft and target in step, prefix reuse, memory


@pytest.mark.parametrize("drafter", ["draft-model", "self"])
async def test_a_hundred_requests_leave_nothing_behind_and_are_drafted_to_the_end(
    table_stack: Stack, drafter: str
) -> None:
    """CASES 34."""
    coordinator = table_stack.coordinator
    common = {"temperature": 0, "ignore_eos": True, "speculation": drafts(drafter, 4)}
    probe = {**common, "prompt": "the same every time", "max_tokens": 40}
    first = await ask(coordinator, probe)
    bodies = [
        {**common, "prompt": f"number {number}", "max_tokens": 1 + 7 * number % 40}
        for number in range(100)
    ]
    services = (table_stack.coordinator, table_stack.target, table_stack.drafts[drafter])
    answers = await ask_all(coordinator, bodies[:30], 4)
    resident_before = [service.resident_bytes for service in services]
    answers += await ask_all(coordinator, bodies[30:], 4)
    for service, before in zip(services, resident_before, strict=True):
        assert service.resident_bytes < 1.05 * before
    for answer, body in zip(answers, bodies, strict=True):
        assert answer.num_completion_tokens == body["max_tokens"]
    last = await ask(coordinator, probe)
    assert last.speculation["num_accepted_draft_tokens"] > 0
    assert last.speculation == first.speculation
    await soon(lambda: is_idle(coordinator), "all sequences are gone")
    for worker in (table_stack.target, table_stack.drafts[drafter]):
        found = await load(worker)
        assert (found.num_sequences, found.num_waiting, found.kv_used) == (0, 0, 0)


async def test_speculation_works_for_every_request_and_not_only_the_first(
    model_stack: Stack,
) -> None:
    """CASES 35."""
    prompts = ["A B C D A B C D A B C", "1 2 3 4 1 2 3 4 1 2"]
    seen: dict[str, list[Answer]] = {prompt: [] for prompt in prompts}
    for prompt in [prompts[0]] * 3 + [prompts[1], prompts[0]] * 2:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 16}
        body["speculation"] = drafts("prompt-lookup", 4)
        seen[prompt].append(await ask(model_stack.coordinator, body))
    for answers in seen.values():
        for answer in answers:
            check_equal(answer, answers[0], "the same request again")
            assert answer.speculation["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("speculation", [OFF, *MODES[2:], drafts("self", 4)], ids=str)
async def test_preemption_for_lack_of_room_changes_nothing(
    processes: Processes, table_stack: Stack, small_stack: Stack, speculation: Body
) -> None:
    """CASES 36."""
    bodies = [
        {
            "prompt": f"{number} " + "round and round the rugged rock " * 2,
            "max_tokens": 96,
            "temperature": 1.0,
            "seed": number,
            "ignore_eos": True,
        }
        for number in range(6)
    ]
    plain = await ask_all(
        table_stack.coordinator, [{**body, "speculation": OFF} for body in bodies], 1
    )
    before = await load(small_stack.target)
    crowded = [{**body, "speculation": speculation} for body in bodies]
    answers = await ask_all(small_stack.coordinator, crowded, concurrency=6)
    for number, (answer, expected) in enumerate(zip(answers, plain, strict=True)):
        check_equal(answer, expected, f"request {number} in a pool that is too small")
    after = await load(small_stack.target)
    assert after.num_preemptions > before.num_preemptions
    await soon(lambda: is_idle(small_stack.coordinator), "all sequences are gone")


async def test_a_request_larger_than_the_pool_is_refused_with_the_limit(
    small_stack: Stack,
) -> None:
    """CASES 36."""
    body = {"prompt": "Once", "max_tokens": 400}
    response = await post(small_stack.coordinator, body)
    assert response.status_code == 400
    assert str(SMALL_POOL) in response.json()["error"]["message"]
    fits = {**body, "max_tokens": SMALL_POOL - 5, "ignore_eos": True, "temperature": 0}
    answer = await ask_every_way(small_stack.coordinator, fits, modes=MODES[2:])
    assert answer.num_completion_tokens == SMALL_POOL - 5


SMALL_POOL = 304
"""Tokens of KV room; the requests want three times as much together."""


@pytest.fixture(scope="module")
def small_stack(processes: Processes) -> Stack:
    """Target and drafts with room for one request and a part of another."""
    workers = {
        "prompt-lookup": processes.draft("prompt-lookup"),
        "draft-model": processes.draft(
            "draft-model", model=f"{TABLE}:0.2", kv_cache_tokens=SMALL_POOL
        ),
        "self": processes.draft("self", model=TABLE, kv_cache_tokens=SMALL_POOL),
    }
    target = processes.target(model=TABLE, kv_cache_tokens=SMALL_POOL)
    return processes.stack(target, workers)


# L. Metrics


@pytest.mark.parametrize("drafter", ["prompt-lookup", "draft-model", "self"])
async def test_what_is_counted_adds_up(table_stack: Stack, drafter: str) -> None:
    """CASES 46."""
    coordinator = table_stack.coordinator
    await soon(lambda: is_idle(coordinator), "nothing else runs")
    before = await metrics(coordinator)
    bodies = [
        {"prompt": f"{number} to be or not to be", "seed": number, "max_tokens": 40}
        for number in range(12)
    ]
    # Stops inside of blocks: what is drafted and accepted behind them belongs to no answer.
    bodies += [{**body, "stop": ["e"]} for body in bodies]
    requests = [{**body, "speculation": drafts(drafter, 4)} for body in bodies]
    answers = await ask_all(coordinator, requests, concurrency=4)
    await soon(lambda: is_idle(coordinator), "all gauges are back at 0")
    after = await metrics(coordinator)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    counters = [name for name in before if name.endswith("_total")]
    assert [name for name in counters if grown[name] < 0] == []

    num_steps = grown["spec_decode_num_drafts_total"]
    num_drafts = grown["spec_decode_num_draft_tokens_total"]
    num_accepted = grown["spec_decode_num_accepted_tokens_total"]
    num_emitted = grown["generation_tokens_total"]
    assert 0 < num_accepted <= num_drafts <= 4 * num_steps
    assert num_emitted == sum(answer.num_completion_tokens for answer in answers)
    assert num_emitted == sum(len(answer.token_ids) for answer in answers)
    assert num_emitted <= grown["target_tokens_total"]
    num_passes = grown["target_passes_total"]
    # Each pass adds a token of the target's own, except behind an end that was drafted.
    num_ended = sum(answer.token_ids[-1] == EOS_ID for answer in answers)
    num_committed = grown["target_tokens_total"]
    assert num_passes + num_accepted - num_ended <= num_committed <= num_passes + num_accepted
    by_place = [
        grown.get(f"spec_decode_num_accepted_tokens_per_pos_total:{place}", 0.0)
        for place in range(5)
    ]
    assert by_place == sorted(by_place, reverse=True)
    assert by_place[4] == 0
    assert sum(by_place) == num_accepted
    for name, total in (
        ("num_draft_tokens", num_drafts),
        ("num_accepted_draft_tokens", num_accepted),
        ("num_spec_steps", num_steps),
        ("num_target_passes", num_passes),
    ):
        assert sum(answer.speculation[name] for answer in answers) == total
    if drafter == "self":
        assert num_accepted == num_drafts
    else:
        assert num_accepted < num_drafts


async def test_drafts_from_an_unrelated_model_are_hardly_ever_accepted(
    processes: Processes, table_stack: Stack
) -> None:
    """CASES 46: acceptance is counted and not assumed."""
    draft = processes.draft("draft-model", model=f"{TABLE}:1")
    stack = processes.stack(table_stack.target, {"draft-model": draft})
    body = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 100}
    plain = await ask(table_stack.coordinator, {**body, "speculation": OFF})
    answer = await ask(stack.coordinator, {**body, "speculation": drafts("draft-model", 4)})
    check_equal(answer, plain, "with an unrelated draft")
    assert answer.speculation["draft_acceptance_rate"] < 0.25
    stack.coordinator.stop()
    draft.stop()


def test_the_tokens_named_here_are_what_they_are_said_to_be() -> None:
    """CASES 0.3."""
    tokenizer = smollm2_tokenizer()
    assert tokenizer.encode(" ha") == (HA,)
    assert tokenizer.encode("1") == (ONE,)
    assert tokenizer.encode("🙂") == (HALF_SMILE, OTHER_HALF)
    assert table_tokenizer().encode("x")[-1] == ord("x")
