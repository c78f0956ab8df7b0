"""What a StatefulSet does with its pods: one for each number from 0, each with a name that stays.

Only as groups of ranks have them: all are made at once (`Parallel`), a pod that is gone is made
again of the template as it is then, and none is replaced before it is deleted (`OnDelete`).
"""

from collections.abc import Callable

from tests.cluster.objects import Object
from tests.cluster.pod import Pod
from tests.cluster.workload import Workload


class StatefulSet(Workload):
    """One StatefulSet and its pods."""

    def __init__(self, item: Object, make: Callable[[str, Object], Pod]) -> None:
        spec = item["spec"]
        assert spec["podManagementPolicy"] == "Parallel", "others are not known here"
        assert spec["updateStrategy"]["type"] == "OnDelete", "others are not known here"
        super().__init__(item)
        self._make = make
        self._pods: dict[int, Pod] = {}

    @property
    def pods(self) -> list[Pod]:
        """Those that there are, by their number, ending ones too."""
        return [pod for _, pod in sorted(self._pods.items()) if not pod.is_over]

    @property
    def is_complete(self) -> bool:
        """Whether there is what is wanted, all ready, and no other."""
        return len(self.pods) == self.num_wanted and all(pod.is_ready for pod in self.active)

    def reconcile(self) -> None:
        """Make and end pods as it has to be now."""
        for number, pod in self._pods.items():
            if number >= self.num_wanted:
                pod.delete()
        for number in range(self.num_wanted):
            if number not in self._pods or self._pods[number].is_over:
                self._pods[number] = self._make(f"{self.name}-{number}", self._template(number))

    def _template(self, number: int) -> Object:
        """With what a pod of this number has besides."""
        template, name = self.item["spec"]["template"], f"{self.name}-{number}"
        labels = {
            **template["metadata"].get("labels", {}),
            "apps.kubernetes.io/pod-index": str(number),
            "statefulset.kubernetes.io/pod-name": name,
        }
        spec = {
            **template["spec"],
            "hostname": name,
            "subdomain": self.item["spec"]["serviceName"],
        }
        return {"metadata": {**template["metadata"], "labels": labels}, "spec": spec}
