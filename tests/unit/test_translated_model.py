"""A draft model with other tokens proposes what the target's tokenizer would make of its text."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from other_tokenizers import (
    KnowingLaw,
    byte_level_files,
    lowercasing,
    sentencepiece_files,
    table_vocabulary,
)
from plain_text import plain_text

from draft_service.drafters.translated_model import (
    SharedTokenChoice,
    TextChoice,
    TranslatedDrafter,
    translated_drafter,
)
from draft_service.proposer import Proposal
from draft_service.translation.shared_tokens import SharedTokens
from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.grammar import Grammars
from paceline.engine.sampling import token_law
from paceline.engine.sequences import EngineSequence
from paceline.engine.table_model import BOS_ID, EOS_ID, TableLaw, TableModel
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.errors import InvalidConfig
from paceline.rounds import AcceptanceRule, SequenceSettings
from paceline.token_log import TokenLog

LAW = TableLaw(7)
TARGET = table_vocabulary()
DRAFTS = {
    "byte-level": Vocabulary("byte-level", byte_level_files()),
    "sentencepiece": Vocabulary("sentencepiece", sentencepiece_files()),
}
GRAMMARS = Grammars.of_tokenizer(table_tokenizer_files(), LAW.vocab_size)
PROMPT = [BOS_ID, *b"the rain in"]
GREEDY = SequenceSettings(max_length=400, stop_token_ids=(EOS_ID,), prompt_length=len(PROMPT))
drafts = pytest.mark.parametrize("draft", DRAFTS)
ways = pytest.mark.parametrize("way", ["shared", "text"])


def new_drafter(
    draft: str, way: str, law: Any = None, grammars: Grammars | None = None, **room: int
) -> TranslatedDrafter:
    vocabulary = DRAFTS[draft]
    law = law or KnowingLaw(LAW, vocabulary)
    shared = SharedTokens(TARGET, vocabulary, len(vocabulary))
    choice = (
        SharedTokenChoice(shared, grammars)
        if way == "shared"
        else TextChoice(TARGET, vocabulary, grammars)
    )
    return TranslatedDrafter(TableModel(law, cell_size=4, **room), TARGET, vocabulary, choice)


def begun(
    drafter: TranslatedDrafter, log: TokenLog, settings: SequenceSettings = GREEDY
) -> EngineSequence:
    sequence = drafter.table.sync("a", log.span(0), settings)
    assert isinstance(sequence, EngineSequence)
    return sequence


def complete(drafter: TranslatedDrafter, proposal: Proposal) -> list[int]:
    while not proposal.is_done:
        drafter.extend([proposal])
    return proposal.token_ids


@drafts
@ways
def test_what_the_target_would_say_is_proposed_to_the_end(draft: str, way: str) -> None:
    drafter = new_drafter(draft, way)
    said = plain_text(LAW, PROMPT, GREEDY)
    assert said[-1] == EOS_ID
    log = TokenLog.of(PROMPT)
    num_proposals = 0
    while (place := len(log) - len(PROMPT)) < len(said):
        proposed = complete(drafter, Proposal(begun(drafter, log), 5))
        assert proposed == said[place : place + len(proposed)]
        log.token_ids.extend(said[place : place + len(proposed) + 1])
        num_proposals += 1
    assert num_proposals < len(said) / 4


@drafts
@ways
def test_what_was_rejected_leaves_no_trace(draft: str, way: str) -> None:
    drafter = new_drafter(draft, way)
    said = plain_text(LAW, PROMPT, GREEDY)
    complete(drafter, Proposal(begun(drafter, TokenLog.of(PROMPT)), 5))
    text = [*PROMPT, said[0], ord("Q"), 0xF0, 0x9F]
    proposed = complete(drafter, Proposal(begun(drafter, TokenLog.of(text)), 5))
    assert proposed == plain_text(LAW, text, GREEDY)[: len(proposed)]
    assert proposed


@ways
def test_a_sequence_that_has_ended_holds_nothing(way: str) -> None:
    drafter = new_drafter("byte-level", way)
    complete(drafter, Proposal(begun(drafter, TokenLog.of(PROMPT)), 5))
    assert drafter.load(3).kv_used > 0
    drafter.table.close("a")
    load = drafter.load(0)
    assert (load.num_sequences, load.kv_used) == (0, 0)


@ways
def test_without_room_for_the_drafts_spelling_there_are_fewer_drafts_or_none(way: str) -> None:
    num_tokens = len(DRAFTS["byte-level"].encode(bytes(PROMPT[1:]))) + 1
    few = complete(
        drafter := new_drafter("byte-level", way, max_model_len=num_tokens + 3),
        Proposal(begun(drafter, TokenLog.of(PROMPT)), 12),
    )
    assert few == plain_text(LAW, PROMPT, GREEDY)[: len(few)]
    assert 0 < len(few) < 12
    none = new_drafter("byte-level", way, max_model_len=2)
    assert complete(none, Proposal(begun(none, TokenLog.of(PROMPT)), 12)) == []


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_shared_tokens_are_sampled_from_a_law_over_the_targets_ids(rule: AcceptanceRule) -> None:
    vocabulary = DRAFTS["byte-level"]
    law = TableLaw(3, vocab_size=len(vocabulary))
    settings = replace(GREEDY, temperature=1.0, seed=5, acceptance_rule=rule)
    drafter = new_drafter("byte-level", "shared", law)
    proposal = Proposal(begun(drafter, TokenLog.of(PROMPT), settings), 3)
    complete(drafter, proposal)
    shared = SharedTokens(TARGET, vocabulary, len(vocabulary))
    context = vocabulary.encode(bytes(PROMPT[1:]))
    spelled = [vocabulary.roles["bos_token"], *context]
    position = len(PROMPT)
    for token_id, support in zip(proposal.token_ids, proposal.supports, strict=True):
        row = shared.row(law.logits(np.array(spelled), 1)[0])
        expected = token_law(row, settings, position, ())
        found = np.zeros(len(TARGET))
        found[list(support.token_ids)] = support.weights
        np.testing.assert_allclose(found / found.sum(), expected, atol=1e-6)
        spelled.append(shared.draft_id[token_id])
        position += 1


def test_text_has_no_law_since_nothing_of_it_is_drawn() -> None:
    settings = replace(GREEDY, temperature=1.0, seed=5, acceptance_rule=AcceptanceRule.REJECTION)
    drafter = new_drafter("byte-level", "text")
    proposal = Proposal(begun(drafter, TokenLog.of(PROMPT), settings), 4)
    assert complete(drafter, proposal) == plain_text(LAW, PROMPT, GREEDY)[:4]
    assert proposal.supports == []


@ways
def test_a_grammar_of_the_target_is_kept_to(way: str) -> None:
    said = bytes(plain_text(LAW, PROMPT, GREEDY)[:3]).decode()
    settings = replace(GREEDY, grammar=f'start: "{said}" "!"')
    GRAMMARS.begin(settings.grammar)
    GRAMMARS.wait([settings.grammar], 10)
    drafter = new_drafter("byte-level", way, grammars=GRAMMARS)
    proposed = complete(drafter, Proposal(begun(drafter, TokenLog.of(PROMPT), settings), 6))
    assert bytes(proposed[:3]).decode() == said
    if way == "shared":
        assert proposed[3:] == [ord("!"), EOS_ID]
    else:
        assert proposed[3:] == []


class Nonsense(TableLaw):
    def logits(self, token_ids: Any, num_logits: int) -> Any:
        return np.full((num_logits, self.vocab_size), np.nan, np.float32)


@ways
def test_rows_without_numbers_propose_nothing(way: str) -> None:
    law = Nonsense(1, vocab_size=len(DRAFTS["byte-level"]))
    drafter = new_drafter("byte-level", way, law)
    assert complete(drafter, Proposal(begun(drafter, TokenLog.of(PROMPT)), 5)) == []


def test_which_way_is_taken_depends_on_how_alike_texts_are_split(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    files = byte_level_files()
    model = TableModel(TableLaw(1, vocab_size=len(DRAFTS["byte-level"])))
    translated_drafter(model, "tiny", files, table_tokenizer_files())
    translated_drafter(model, "tiny", files, byte_level_files(eos="<end>"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "token 0 is" in first
    assert "translated as text" in first
    assert "(token 1 is '<end>' for the target and '</s>' for the draft)" in second
    assert "translated token by token" in second


def test_a_pair_that_cannot_be_translated_is_refused_with_the_first_difference() -> None:
    model = TableModel(TableLaw(1, vocab_size=300))
    expected = (
        r"'tiny' has other tokens than the target \(token 0 is '.' for the target and '<s>' for "
        r"the draft\), and they cannot be translated: .* changes the text"
    )
    with pytest.raises(InvalidConfig, match=expected):
        translated_drafter(model, "tiny", lowercasing(byte_level_files()), table_tokenizer_files())
