"""The model side of a worker: models, KV cache, sampling, and the thread that owns the device.

One thread drives a model, one ragged batch per pass. Nothing here knows gRPC, Redis or HTTP.

Dimension key used in shape comments: `N` rows of a pass (all tokens of all sequences, one after
the other), `B` sequences, `L` tokens of one sequence, `V` vocabulary, `H` heads, `D` head size.
"""
