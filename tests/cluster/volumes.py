"""What is mounted into containers, as the kubelet makes it.

Secrets, ConfigMaps and the like are folders of links into `..data`, itself a link, that is swapped
as a whole when the object changes. A claim of a disk is a folder of the node. All belong to root
and the pod's `fsGroup`.
"""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.cluster.objects import NotThere, Object, Objects

CLAIMS = "claims"
"""The folder of a node with the disks behind claims."""
Files = dict[str, tuple[bytes, int]]
"""Contents and modes by path."""


class Volume(NamedTuple):
    """A folder on the node."""

    path: Path
    is_memory: bool
    """Mount a tmpfs of this size instead."""
    size: str


class Volumes:
    """Those of one pod."""

    def __init__(
        self, folder: Path, pod: Object, objects: Objects, field: Callable[[str], str]
    ) -> None:
        self._folder = folder
        self._claims = folder.parent.parent / CLAIMS
        self._pod = pod
        self._objects = objects
        self._field = field
        self._group = pod["spec"].get("securityContext", {}).get("fsGroup", -1)
        self._versions = itertools.count()
        self._shown: dict[str, Files] = {}
        self.by_name: dict[str, Volume] = {}
        self.account = Volume(folder / "..account", False, "")

    def make(self) -> None:
        """All of them; raises `NotThere`."""
        for volume in self._pod["spec"].get("volumes", []):
            name = volume["name"]
            path = self._folder / name
            memory = volume.get("emptyDir") or {}
            is_memory = memory.get("medium") == "Memory"
            if claim := volume.get("persistentVolumeClaim"):
                self._objects.get("PersistentVolumeClaim", claim["claimName"])
                path = self._claims / claim["claimName"]
            self.by_name[name] = Volume(path, is_memory, memory.get("sizeLimit", ""))
            path.mkdir(parents=True, exist_ok=True)
            if "emptyDir" in volume or claim:
                os.chown(path, 0, self._group)
                path.chmod(0o2777)
            else:
                self._show(name, self._files(volume))

    def refresh(self) -> None:
        """What the kubelet does now and then: show objects as they are."""
        for volume in self._pod["spec"].get("volumes", []):
            if volume["name"] in self._shown:
                self._show(volume["name"], self._files(volume))

    def add_account(self, files: Files) -> None:
        """The token that is mounted without being asked for."""
        self.account.path.mkdir(parents=True, exist_ok=True)
        self._show(self.account.path.name, files)

    def _show(self, name: str, files: Files) -> None:
        if self._shown.get(name) == files:
            return
        self._shown[name] = files
        folder = self._folder / name
        version = f"..version-{next(self._versions)}"
        for path, (content, mode) in files.items():
            file = folder / version / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            os.chown(file, 0, self._group)
            # The group of the pod may read whatever the mode says.
            file.chmod(mode | (0o440 if self._group >= 0 else 0))
        (folder / version).mkdir(exist_ok=True)
        old = os.readlink(folder / "..data") if (folder / "..data").is_symlink() else ""
        (folder / "..next").symlink_to(version)
        (folder / "..next").rename(folder / "..data")
        tops = {path.partition("/")[0] for path in files}
        for top in tops:
            if not (folder / top).is_symlink():
                (folder / top).symlink_to(f"..data/{top}")
        for left in folder.iterdir():
            if not left.name.startswith("..") and left.name not in tops:
                left.unlink()
        if old:
            shutil.rmtree(folder / old)

    def _files(self, volume: Object) -> Files:
        if "projected" in volume:
            mode = volume["projected"].get("defaultMode", 0o644)
            parts = [self._part(source, mode) for source in volume["projected"]["sources"]]
            return {path: file for part in parts for path, file in part.items()}
        return self._part(volume, 0o644)

    def _part(self, source: Object, mode: int) -> Files:
        if found := source.get("downwardAPI"):
            return {
                item["path"]: (self._field(item["fieldRef"]["fieldPath"]).encode(), mode)
                for item in found["items"]
            }
        for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
            if found := source.get(key):
                return self._of_object(kind, found, found.get("defaultMode", mode))
        raise AssertionError(f"a volume of a kind that is not known here: {source}")

    def _of_object(self, kind: str, source: Object, mode: int) -> Files:
        try:
            files = self._objects.files(kind, source.get("secretName") or source["name"])
        except NotThere:
            if source.get("optional"):
                return {}
            raise
        if not (items := source.get("items")):
            return {name: (content, mode) for name, content in files.items()}
        if missing := [item["key"] for item in items if item["key"] not in files]:
            raise NotThere(f"keys {missing} of {kind} {source}")
        return {item["path"]: (files[item["key"]], item.get("mode", mode)) for item in items}
