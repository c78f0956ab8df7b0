"""The drafters `eagle` and `medusa` draft trees of what the papers' forward passes say."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eagle_heads import HeadFiles, random_head
from eagle_owner import (
    DRAFT_VOCAB_SIZE,
    GREEDY,
    SAMPLED,
    SEEDED,
    TEXT,
    VOCAB_SIZE,
    Owner,
    finish,
    loaded,
    reference_drafts,
    rows_for,
)
from eagle_reference import reference_logits
from medusa_heads import HIDDEN, NUM_HEADS, medusa_reference, random_medusa
from test_medusa import loaded as loaded_medusa
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config
from trees import as_tree, ways

from draft_service.draft_tree import TREES, DraftTree, DynamicTree, NewTree, StaticTree
from draft_service.drafters.eagle import EagleDrafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.medusa import MedusaDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Proposer
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.model import Logits
from paceline.engine.sampling import ranked_tokens
from paceline.rounds import Drafts, SequenceSettings
from paceline.token_tree import tree_fault

NUMBER = 9
SETTINGS = pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
SHAPES = pytest.mark.parametrize("shape", TREES)
FILES = random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE)
Row = Callable[[Sequence[int]], Logits]
"""The logits behind the text and a way of drafts."""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    return loaded(FILES, tmp_path_factory.mktemp("head"))


def owner_of(head: EagleHead, new_tree: NewTree | None, kv_capacity: int | None = None) -> Owner:
    drafter = EagleDrafter(head, kv_capacity=kv_capacity, new_tree=new_tree)
    return Owner(Proposer(drafter, 16, head.feature_size), feature_size=head.feature_size)


def eagle_row(files: HeadFiles, text: list[int], start: int = 0) -> Row:
    features = torch.from_numpy(rows_for(text, files.feature_size)[start:-1].copy())

    def row(way: Sequence[int]) -> Logits:
        logits: Logits = (
            reference_logits(files, features, [*text, *way][start + 1 :], start).float().numpy()
        )
        return logits

    return row


def expected_tree(
    row: Row,
    text: list[int],
    settings: SequenceSettings,
    tree: DraftTree,
    max_depth: int = 99,
) -> Drafts:
    """The same tree, every token of it from scratch."""
    for _ in range(max_depth):
        if not tree.running:
            break
        said = [tree.token_ids(tree.way(number)) for number in tree.running]
        tree.grow(
            [
                ranked_tokens(row(way), settings, len(text) + len(way), tree.width, [*text, *way])
                for way in said
            ]
        )
    return tree.drafts()


def assert_same(drafts: Drafts, expected: Drafts) -> None:
    assert as_tree(drafts) == Drafts(expected.token_ids, expected.parents)
    assert drafts.confidences == pytest.approx(expected.confidences, abs=0.011)


@SETTINGS
@SHAPES
@pytest.mark.parametrize(("length", "start"), [(2, 0), (23, 0), (60, 47)])
def test_an_eagle_tree_is_that_of_the_papers_forward_pass(
    head: EagleHead, settings: SequenceSettings, shape: str, length: int, start: int
) -> None:
    text = TEXT[:length]
    drafts = owner_of(head, TREES[shape]).drafts(
        text, (start, length - 1), settings=settings, number=NUMBER
    )
    assert tree_fault(drafts) == ""
    tree = TREES[shape](NUMBER, settings.stop_token_ids, 0.0)
    expected = expected_tree(eagle_row(FILES, text, start), text, settings, tree)
    assert_same(drafts, expected)
    assert len(set(drafts.parents)) > 2


def test_trees_have_branches_and_both_shapes_differ(head: EagleHead) -> None:
    """Or else the test above would prove less than it says."""
    said = [
        owner_of(head, new_tree).drafts(TEXT[:23], (0, 22), number=NUMBER)
        for new_tree in TREES.values()
    ]
    assert said[0] != said[1]
    assert all(max(map(len, ways(drafts))) < NUMBER for drafts in said)


@SHAPES
def test_what_was_drafted_in_a_tree_leaves_no_trace(head: EagleHead, shape: str) -> None:
    owner = owner_of(head, TREES[shape])
    owner.drafts(TEXT[:20], (0, 19), number=NUMBER)
    later = owner.drafts(TEXT[:23], (19, 22), start=20, number=NUMBER)
    fresh = owner_of(head, TREES[shape]).drafts(TEXT[:23], (0, 22), number=NUMBER)
    assert later == fresh


def test_where_the_rule_takes_no_tree_a_chain_is_drafted(head: EagleHead) -> None:
    drafts = owner_of(head, DynamicTree).drafts(TEXT[:23], (0, 22), settings=SAMPLED)
    assert drafts.parents == ()
    assert drafts == owner_of(head, None).drafts(TEXT[:23], (0, 22), settings=SAMPLED)


def test_trees_and_chains_of_several_sequences_are_drafted_in_one_batch(head: EagleHead) -> None:
    owner = owner_of(head, DynamicTree)
    names = {"a": GREEDY, "b": SAMPLED, "c": SEEDED}
    for index, (name, settings) in enumerate(names.items()):
        owner.name = name
        text = TEXT[: 20 + index]
        assert owner.accept(text, (0, len(text) - 1), settings=settings) is None
    together = finish(owner.proposer)
    for index, (name, settings) in enumerate(names.items()):
        text = TEXT[: 20 + index]
        alone = owner_of(head, DynamicTree).drafts(text, (0, len(text) - 1), settings=settings)
        assert together[name].drafts.token_ids == alone.token_ids
        assert together[name].drafts.parents == alone.parents


def test_a_tree_for_which_the_room_runs_out_is_proposed_as_far_as_it_is(head: EagleHead) -> None:
    drafts = owner_of(head, DynamicTree, kv_capacity=24).drafts(TEXT[:23], (0, 22), number=NUMBER)
    assert 0 < len(drafts.token_ids) <= NUMBER
    assert tree_fault(drafts) == ""


def test_a_hybrid_drafts_a_tree_where_nothing_matches_and_copies_where_something_does(
    head: EagleHead,
) -> None:
    def hybrid() -> Owner:
        model = EagleDrafter(head, new_tree=DynamicTree)
        drafter = HybridDrafter(model, SuffixDrafter(model.table))
        return Owner(Proposer(drafter, 16, head.feature_size), feature_size=head.feature_size)

    strange = [*range(VOCAB_SIZE)]
    drafts = hybrid().drafts(strange, (0, VOCAB_SIZE - 1), number=NUMBER)
    alone = owner_of(head, DynamicTree).drafts(strange, (0, VOCAB_SIZE - 1), number=NUMBER)
    assert drafts == alone and drafts.parents
    copied = hybrid().drafts([*strange, *strange[:9]], (0, VOCAB_SIZE + 8), number=NUMBER)
    assert copied.token_ids[:3] == (9, 10, 11) and copied.parents == ()


def test_a_tree_of_one_path_is_a_chain(head: EagleHead) -> None:
    def one_path(number: int, stop_token_ids: object, min_confidence: float) -> StaticTree:
        return StaticTree([(0,) * depth for depth in range(1, number + 1)])

    drafts = owner_of(head, one_path).drafts(TEXT[:23], (0, 22))
    assert drafts.parents == ()
    assert list(drafts.token_ids) == reference_drafts(FILES, TEXT[:23])


@SETTINGS
@SHAPES
def test_a_medusa_tree_has_the_choices_of_a_head_on_every_level(
    tmp_path: Path, settings: SequenceSettings, shape: str
) -> None:
    directory = save_checkpoint(tmp_path / "target", tiny_config(VOCAB_SIZE))
    target = Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)
    files = random_medusa(VOCAB_SIZE)
    head = loaded_medusa(files, tmp_path / "head", target)
    drafter = MedusaDrafter(head, new_tree=TREES[shape])
    owner = Owner(Proposer(drafter, 16, head.feature_size), feature_size=HIDDEN)
    text = TEXT[:23]
    drafts = owner.drafts(text, (0, 22), settings=settings, number=NUMBER)
    state = torch.from_numpy(rows_for(text, HIDDEN)[-2])

    def row(way: Sequence[int]) -> Logits:
        logits: Logits = medusa_reference(files, state, len(way), None).float().numpy()
        return logits

    tree = TREES[shape](NUMBER, settings.stop_token_ids, 0.0)
    expected = expected_tree(row, text, settings, tree, NUM_HEADS)
    assert_same(drafts, expected)
    assert len(set(drafts.parents)) > 2
    sampled = owner.drafts(text, (0, 22), settings=replace(SAMPLED, seed=3), number=NUMBER)
    assert sampled.parents == ()
