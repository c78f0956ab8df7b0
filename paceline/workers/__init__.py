"""Clients of the draft and target services: streams of rounds, connections, health.

Used by the coordinator, and by anything else that steps sequences through our workers. Knows no
request and no text. `grpc` stays in here: callers see plain rounds and the errors below.
"""

from paceline.workers.round_client import WorkerLost

__all__ = ["WorkerLost"]
