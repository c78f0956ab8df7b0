"""What at least two of the services share; it knows no service.

A module belongs here only when two services need it. `paceline.engine` holds everything that
imports torch, `paceline.workers` the clients of the draft and target services, `paceline.v1` the
generated protocol code. The coordinator uses all of this package except `paceline.engine`.
"""

__version__ = "0.1.0"
