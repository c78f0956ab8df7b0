"""`paceline bench`: how much sooner answers come with speculation, and whether they stay the same.

`prompts` reads questions, `measure` asks them in turns, `figures` and `report` count, `tables`
prints. Only `command` knows options and terminals.
"""
