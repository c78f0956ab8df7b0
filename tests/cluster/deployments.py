"""What a Deployment does with its pods: so many of them, and from an old template to a new one.

`RollingUpdate` makes at most `maxSurge` more and lets at most `maxUnavailable` be missing, of pods
that are not ending; `Recreate` ends all before it makes one. Acts on what it sees whenever it is
asked to, and remembers nothing but its pods.
"""

import hashlib
import json
import math
import random
import string
from collections.abc import Callable
from typing import Any

from tests.cluster.objects import Object
from tests.cluster.pod import Pod
from tests.cluster.workload import Workload


class Deployment(Workload):
    """One Deployment and its pods."""

    def __init__(self, item: Object, make: Callable[[str, Object], Pod]) -> None:
        super().__init__(item)
        self._make = make
        self._pods: list[tuple[str, Pod]] = []
        """With the hash of the template of each."""
        self.num_created = 0
        self.most_pods = 0
        """At one time so far, without those that were ending."""
        self.least_ready: int | None = None
        """Since it was first complete."""

    @property
    def pods(self) -> list[Pod]:
        """Those that there are, ending ones too."""
        return [pod for _, pod in self._pods if not pod.is_over]

    @property
    def is_complete(self) -> bool:
        """Whether there is what is wanted, all of the new template, all ready, and no other."""
        new = [pod for key, pod in self._pods if key == self._key and not pod.is_over]
        return len(self.pods) == len(new) == self.num_wanted and all(pod.is_ready for pod in new)

    def scale(self, replicas: int) -> None:
        """What `kubectl scale` does."""
        super().scale(replicas)
        self.least_ready = None

    def reconcile(self) -> None:
        """Make and end pods as it has to be now."""
        strategy = self.item["spec"].get("strategy", {})
        if strategy.get("type") == "Recreate":
            self._recreate()
        else:
            self._roll(strategy.get("rollingUpdate", {}))
        num_ready = sum(pod.is_ready for pod in self.active)
        self.most_pods = max(self.most_pods, len(self.active))
        if self.is_complete or self.least_ready is not None:
            before = num_ready if self.least_ready is None else self.least_ready
            self.least_ready = min(before, num_ready)

    @property
    def _key(self) -> str:
        text = json.dumps(self.item["spec"]["template"], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def _recreate(self) -> None:
        old = [pod for key, pod in self._pods if key != self._key and not pod.is_over]
        for pod in old:
            pod.delete()
        if not old:
            self._resize(self.num_wanted)

    def _roll(self, limits: Object) -> None:
        wanted = self.num_wanted
        surge = _number(limits.get("maxSurge", "25%"), wanted, math.ceil)
        missing = _number(limits.get("maxUnavailable", "25%"), wanted, math.floor)
        if not surge and not missing:
            missing = 1
        old = [pod for key, pod in self._pods if key != self._key and pod in self.active]
        self._resize(min(wanted, max(0, wanted + surge - len(old))))
        # Old ones that serve nobody go first, the others as new ones become ready.
        num_ready = sum(pod.is_ready for pod in self.active)
        new = [pod for pod in self.active if pod not in old]
        for pod in [pod for pod in old if not pod.is_ready]:
            if len(self.active) > wanted - missing or len(new) >= wanted:
                pod.delete()
        for pod in [pod for pod in old if pod.is_ready]:
            if num_ready > wanted - missing:
                pod.delete()
                num_ready -= 1

    def _resize(self, number: int) -> None:
        """Have so many pods of the new template."""
        new = [pod for key, pod in self._pods if key == self._key and pod in self.active]
        for _ in range(number - len(new)):
            ending = "".join(random.choices(string.ascii_lowercase, k=5))
            template = _labelled(self.item["spec"]["template"], self._key)
            name = f"{self.name}-{self._key}-{ending}"
            self._pods.append((self._key, self._make(name, template)))
            self.num_created += 1
        # Those that are not ready first, then the youngest.
        new.sort(key=lambda pod: (pod.is_ready, -pod.number))
        for pod in new[: max(0, len(new) - number)]:
            pod.delete()


def _labelled(template: Object, key: str) -> Object:
    metadata: Any = template.get("metadata", {})
    labels = {**metadata.get("labels", {}), "pod-template-hash": key}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _number(value: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounded(int(value.removesuffix("%")) * replicas / 100)
