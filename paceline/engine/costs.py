"""What a pass costs on this machine, by its rows and the context behind them.

The coordinator sizes its drafts by this table until live passes have corrected it, so a rough table
at once is worth more than a precise one later.
"""

from time import perf_counter

from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import LanguageModel, PassSequence
from paceline.rounds import PassCost, SequenceSettings

ROWS = (1, 4, 6, 8, 16)
CONTEXTS = (256, 1024, 4096)
NUM_REPEATS = 3
MAX_SECONDS = 2.0
"""No measurement begins later than this."""

_GREEDY = SequenceSettings(max_length=2**32 - 1)
"""A pass whose tokens are chosen on the device includes that, and no copy of its rows."""


def measure_pass_costs(model: LanguageModel) -> tuple[PassCost, ...]:
    """Return the cost of a pass of one sequence, for as many rows and contexts as time allows.

    The shortest context comes first; of several passes the fastest counts, since whatever else
    runs on the machine only ever adds. Needs free room in the KV cache, and leaves nothing there.
    """
    costs: list[PassCost] = []
    deadline = perf_counter() + MAX_SECONDS
    kv = model.kv_cache.open([0], salt="")
    for context in CONTEXTS:
        num_tokens = context + max(ROWS)
        if num_tokens > model.max_model_len or not model.kv_cache.reserve(kv, num_tokens):
            break
        for rows in ROWS:
            if perf_counter() > deadline:
                break
            costs.append(PassCost(rows, context, _milliseconds(model, kv, rows, context)))
    model.kv_cache.release(kv)
    return tuple(costs)


def _milliseconds(model: LanguageModel, kv: KVSequence[object], rows: int, context: int) -> float:
    durations = []
    for _ in range(NUM_REPEATS):
        # What the context's keys and values say takes no time: nothing has to be computed for it.
        kv.num_tokens = context
        start = perf_counter()
        model.forward([PassSequence(kv, [0] * rows, rows, settings=_GREEDY)])
        durations.append(perf_counter() - start)
    return 1000 * min(durations)
