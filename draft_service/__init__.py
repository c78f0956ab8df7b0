"""Proposes tokens. Decides nothing: a wrong, late or missing proposal costs time, never text.

`drafters/` has one file per method.
"""
