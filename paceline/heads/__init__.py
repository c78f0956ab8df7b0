"""Heads: small networks that draft for one model. Their directories and configs; no tensors.

The command line reads what is here before it starts anything, so nothing here imports torch or
`paceline.engine`, which runs the heads.
"""
