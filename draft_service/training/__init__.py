"""Trains drafters for a target: `python -m draft_service.training`, `paceline train-drafter`.

    text        the target's own text, from a file or made by itself       text.py
    features    its hidden states at every token, captured once             features.py, capture.py
    training    the drafter on them                                         eagle.py, trainer.py
    head        what `--head` loads                                         eagle_export.py

Each stage keeps what it has on disk and goes on from there. Knows nothing about serving: what
comes out is a checkpoint like any other.
"""
