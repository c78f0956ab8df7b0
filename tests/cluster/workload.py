"""What all objects have that keep up a number of pods."""

from abc import ABC, abstractmethod

from tests.cluster.objects import Object
from tests.cluster.pod import Pod


class Workload(ABC):
    """One object and its pods."""

    def __init__(self, item: Object) -> None:
        self.item = item

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    @abstractmethod
    def pods(self) -> list[Pod]:
        """Those that there are, ending ones too."""

    @property
    def active(self) -> list[Pod]:
        """Those that are not ending."""
        return [pod for pod in self.pods if not pod.is_terminating]

    @property
    def num_wanted(self) -> int:
        return int(self.item["spec"].get("replicas", 1))

    def scale(self, replicas: int) -> None:
        """What `kubectl scale` does."""
        self.item = {**self.item, "spec": {**self.item["spec"], "replicas": replicas}}
