"""Several processes that run one model together: tensor parallelism.

Rank 0 is the worker that callers see. It decides everything, and tells the others what to run; each
holds its share of the weights and of the KV. Begin with `group.py`, then `leader.py` and
`follower.py`.
"""
