"""The table of costs is measured quickly, and leaves nothing behind."""

from time import perf_counter

from paceline.engine.costs import MAX_SECONDS, measure_pass_costs
from paceline.engine.table_model import TableLaw, TableModel


def test_the_table_has_every_number_of_rows_for_the_contexts_that_fit() -> None:
    model = TableModel(TableLaw.parse("table:1"), max_model_len=1100)
    start = perf_counter()
    costs = measure_pass_costs(model)
    assert perf_counter() - start < MAX_SECONDS + 1
    assert [(cost.rows, cost.context) for cost in costs] == [
        (rows, context) for context in (256, 1024) for rows in (1, 4, 6, 8, 16)
    ]
    assert all(cost.milliseconds > 0 for cost in costs)
    assert model.kv_cache.num_used == 0


def test_a_model_without_room_for_any_context_has_an_empty_table() -> None:
    model = TableModel(TableLaw.parse("table:1"), max_model_len=100)
    assert measure_pass_costs(model) == ()
