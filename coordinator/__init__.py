"""Owns requests: admission, tokenization, the rounds between draft and target, text, records.

Talks to workers through `paceline.workers` and never sees a logit; imports neither torch nor
`paceline.engine`. Read `decode_loop.py` first.
"""
