"""The only authority on output tokens: checks drafts in one batched pass and adds its own token.

Read `verifier.py`, then `acceptance.py`. Knows sequences, never users or sessions.
"""
