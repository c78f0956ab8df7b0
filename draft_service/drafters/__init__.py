"""One file per method of drafting; `registry.py` names them."""
