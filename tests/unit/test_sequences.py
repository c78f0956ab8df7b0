"""A worker's sequences: their KV is a true beginning of what their owner vouched for."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline.engine.model import PassSequence
from paceline.engine.sequences import EngineSequence, Held, SequenceTable
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import SequenceSettings
from paceline.token_log import TokenLog

SETTINGS = SequenceSettings(max_length=200, stop_token_ids=(9,))
CELL_SIZE = 4


def new_table(num_cells: int = 16) -> tuple[TableModel, SequenceTable]:
    model = TableModel(TableLaw(1, vocab_size=12), num_cells=num_cells, cell_size=CELL_SIZE)
    return model, SequenceTable(model.kv_cache)


def placed(
    table: SequenceTable,
    sequence_id: str,
    token_ids: list[int],
    start: int = 0,
    settings: SequenceSettings | None = SETTINGS,
) -> EngineSequence | Held:
    """The answer to the span of these tokens from `start` on."""
    return table.sync(sequence_id, TokenLog.of(token_ids).span(start), settings)


def run(
    model: TableModel, table: SequenceTable, sequence: EngineSequence, drafts: list[int]
) -> bool:
    """Compute what is missing of a sequence, and some drafts behind it; False without room."""
    kv = table.reserve(sequence, len(sequence.log) + len(drafts))
    if kv is None:
        return False
    token_ids = [*sequence.uncomputed(), *drafts]
    model.forward([PassSequence(kv, token_ids, 1)])
    table.ran(sequence, token_ids)
    return True


def begun(table: SequenceTable, sequence_id: str, token_ids: list[int]) -> EngineSequence:
    sequence = placed(table, sequence_id, token_ids)
    assert isinstance(sequence, EngineSequence)
    return sequence


def test_an_unknown_sequence_holds_nothing() -> None:
    _, table = new_table()
    assert placed(table, "a", [1, 2, 3], start=2) == Held(0)
    assert placed(table, "a", [1, 2, 3], settings=None) == Held(0)
    assert len(table) == 0


def test_a_span_that_starts_behind_the_end_is_told_where_that_is() -> None:
    _, table = new_table()
    begun(table, "a", [1, 2, 3])
    assert placed(table, "a", [1, 2, 3, 4, 5], start=4) == Held(3)


def test_a_span_behind_other_tokens_is_sent_back_to_the_beginning() -> None:
    _, table = new_table()
    sequence = begun(table, "a", [1, 2, 3])
    assert placed(table, "a", [1, 7, 3, 4], start=3) == Held(0)
    assert list(sequence.log.token_ids) == [1, 2, 3]


def test_settings_come_with_a_span_from_the_beginning_and_stay() -> None:
    _, table = new_table()
    sequence = begun(table, "a", [1, 2, 3])
    placed(table, "a", [1, 2, 3, 4], start=3, settings=replace(SETTINGS, seed=5))
    assert sequence.settings.seed == 0
    placed(table, "a", [1, 2, 3, 4], settings=replace(SETTINGS, seed=5))
    assert sequence.settings.seed == 5


def test_a_stop_token_and_the_last_place_end_a_sequence() -> None:
    _, table = new_table()
    sequence = begun(table, "a", [1, 9, 2])
    assert not sequence.has_ended
    table.commit(sequence, [9])
    assert sequence.has_ended
    short = table.sync("b", TokenLog.of([1, 2]).span(0), SequenceSettings(max_length=3))
    assert isinstance(short, EngineSequence)
    assert not short.has_ended
    table.commit(short, [5])
    assert short.has_ended


def test_a_rollback_keeps_the_kv_of_what_stays_the_same() -> None:
    model, table = new_table()
    sequence = begun(table, "a", [1, 2, 3, 4, 5])
    assert run(model, table, sequence, [6, 7])
    placed(table, "a", [1, 2, 3, 4, 5, 6, 8], start=3)
    assert list(sequence.computed) == [1, 2, 3, 4, 5, 6]
    placed(table, "a", [1, 2, 0, 4], start=2)
    assert list(sequence.computed) == [1, 2]


def test_the_last_token_is_run_again_when_nothing_else_is_missing() -> None:
    model, table = new_table()
    sequence = begun(table, "a", [1, 2, 3])
    assert run(model, table, sequence, [4])
    placed(table, "a", [1, 2, 3], start=3)
    assert list(sequence.uncomputed()) == [3]


def test_accepted_drafts_keep_their_kv_and_rejected_ones_lose_it() -> None:
    model, table = new_table()
    sequence = begun(table, "a", [1, 2, 3])
    assert run(model, table, sequence, [4, 5, 6])
    table.commit(sequence, [4, 8])
    assert list(sequence.computed) == [1, 2, 3, 4]
    assert list(sequence.uncomputed()) == [8]


def test_a_full_pool_takes_the_room_of_the_newest() -> None:
    model, table = new_table(num_cells=6)
    oldest, middle, newest = (begun(table, id, [ord(id) % 7] * 8) for id in "abc")
    assert all(run(model, table, sequence, []) for sequence in (oldest, middle, newest))
    assert table.reserve(oldest, 9)
    assert newest.kv is None
    assert newest.uncomputed() == newest.log.token_ids
    assert table.num_preemptions == 1
    assert table.reserve(newest, 8) is None, "its elders have the room"
    assert middle.kv is not None
    table.close("b")
    assert run(model, table, newest, [])


def test_those_that_take_part_in_a_pass_keep_their_room() -> None:
    model, table = new_table(num_cells=4)
    older, newer = (begun(table, id, [ord(id) % 7] * 8) for id in "ab")
    assert run(model, table, older, [])
    assert run(model, table, newer, [])
    assert table.reserve(older, 9, keep=[newer]) is None
    assert newer.kv is not None
    assert older.kv is None


def test_a_closed_sequence_gives_its_room_back_and_can_be_found_by_content() -> None:
    model, table = new_table()
    prompt = [1, 2, 3, 4] * 5
    assert run(model, table, begun(table, "a", prompt), [])
    sequence = begun(table, "a", prompt)
    table.commit(sequence, [5])
    table.close("a")
    assert model.kv_cache.num_used == len(table) == 0
    assert table.reserve(begun(table, "b", prompt), len(prompt))
    assert len(begun(table, "b", prompt).computed) == 16


class TableMachine(RuleBasedStateMachine):
    """Three sequences in a pool for less, with owners that send, roll back, repeat and lie."""

    ids = st.sampled_from("abc")
    tokens = st.lists(st.integers(0, 2), max_size=9)

    def __init__(self) -> None:
        super().__init__()
        self.model, self.table = new_table(num_cells=10)
        self.owned: dict[str, list[int]] = {}
        self.known: dict[str, list[int]] = {}
        self.placed: dict[str, EngineSequence] = {}

    def send(self, sequence_id: str, believed: list[int], start: int) -> None:
        known = self.known.get(sequence_id)
        settings = SETTINGS if start == 0 else None
        answer = placed(self.table, sequence_id, believed, start, settings)
        if (known is None and start > 0) or (known or [])[:start] != believed[:start]:
            num_known = len(known or [])
            assert answer == Held(num_known if start > num_known else 0)
            return
        assert isinstance(answer, EngineSequence)
        self.known[sequence_id] = believed
        self.placed[sequence_id] = answer

    @rule(id=ids, more=tokens, data=st.data())
    def sync(self, id: str, more: list[int], data: st.DataObject) -> None:
        owned = self.owned.setdefault(id, [1])
        owned += more
        self.send(id, list(owned), data.draw(st.integers(0, len(owned))))

    @rule(id=ids, data=st.data())
    def roll_back(self, id: str, data: st.DataObject) -> None:
        owned = self.owned.setdefault(id, [1])
        del owned[data.draw(st.integers(1, len(owned))) :]

    @rule(id=ids, believed=tokens, data=st.data())
    def lie(self, id: str, believed: list[int], data: st.DataObject) -> None:
        self.send(id, believed, data.draw(st.integers(0, len(believed))))

    @rule(id=ids, drafts=tokens, own=st.integers(0, 2), data=st.data())
    def verify(self, id: str, drafts: list[int], own: int, data: st.DataObject) -> None:
        sequence = self.placed.get(id)
        if sequence is None or not self.known[id]:
            return
        if run(self.model, self.table, sequence, drafts):
            accepted = drafts[: data.draw(st.integers(0, len(drafts)))]
            self.table.commit(sequence, [*accepted, own])
            self.known[id] = [*self.known[id], *accepted, own]

    @rule(id=ids)
    def close(self, id: str) -> None:
        self.table.close(id)
        for names in (self.owned, self.known, self.placed):
            names.pop(id, None)

    @invariant()
    def the_tokens_are_those_kept_by_hand(self) -> None:
        held = {id: list(sequence.log.token_ids) for id, sequence in self.placed.items()}
        assert held == self.known

    @invariant()
    def kv_is_a_true_beginning_and_leaves_a_token_to_run(self) -> None:
        for sequence in self.placed.values():
            token_ids = list(sequence.log.token_ids)
            computed = list(sequence.computed)
            assert computed == token_ids[: len(computed)]
            assert not token_ids or len(computed) < len(token_ids)
            if sequence.kv is None:
                assert not computed
            else:
                assert list(sequence.kv.storage[: sequence.kv.num_tokens]) == computed

    @invariant()
    def the_pool_is_not_overdrawn(self) -> None:
        cache = self.model.kv_cache
        rooms = [s.kv.num_cells * CELL_SIZE for s in self.placed.values() if s.kv is not None]
        assert sum(rooms) == cache.num_used <= cache.capacity


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
