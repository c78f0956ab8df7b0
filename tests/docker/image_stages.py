"""What docker/Dockerfile says, stage by stage: its lines, and the configuration they add up to.

Reads with the parser of BuildKit. Runs nothing.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

import dockerfile

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGES = ("coordinator", "engine", "engine-cuda")
"""The stages that are images; the others help to make them."""


@dataclass(frozen=True)
class Config:
    """What an image has beside files, or a stage until some instruction."""

    environment: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/bin"}
    )
    arguments: Mapping[str, str] = field(default_factory=dict)
    """`ARG`s in scope."""
    directory: str = "/"
    user: str = "0"
    labels: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """What instructions are expanded with; an `ENV` wins over an `ARG`."""
        return {**self.arguments, **self.environment}

    def expand(self, text: str) -> str:
        """A word of an instruction with its quotes and variables resolved."""
        return Template("".join(shlex.split(text))).substitute(self.variables)

    def after(self, step: dockerfile.Command, outer: Mapping[str, str]) -> "Config":
        """With one more instruction; `outer` are the `ARG`s before the first `FROM`."""
        match step.cmd:
            case "ENV":
                return replace(self, environment={**self.environment, **self._pairs(step)})
            case "LABEL":
                return replace(self, labels={**self.labels, **self._pairs(step)})
            case "ARG":
                name, _, value = step.value[0].partition("=")
                known = self.expand(value) if "=" in step.value[0] else outer[name]
                return replace(self, arguments={**self.arguments, name: known})
            case "WORKDIR":
                return replace(self, directory=self.path(step.value[0]))
            case "USER":
                return replace(self, user=step.value[0])
            case "ENTRYPOINT":
                return replace(self, entrypoint=self._exec_form(step), command=())
            case "CMD":
                return replace(self, command=self._exec_form(step))
            case "RUN" | "COPY" | "EXPOSE":
                return self
        raise AssertionError(f"line {step.start_line}: {step.cmd} is not known here")

    def path(self, text: str) -> str:
        """A path as an instruction means it; ends in a slash where it is said to be a folder."""
        path = str(Path(self.directory) / text)
        return path + "/" if text.endswith("/") else path

    def _pairs(self, step: dockerfile.Command) -> dict[str, str]:
        names, values = step.value[::2], step.value[1::2]
        return {name: self.expand(value) for name, value in zip(names, values, strict=True)}

    @staticmethod
    def _exec_form(step: dockerfile.Command) -> tuple[str, ...]:
        assert step.json, f"line {step.start_line}: a shell would stand between signals and us"
        return tuple(step.value)


@dataclass(frozen=True)
class Stage:
    """From one `FROM` to the next."""

    name: str
    base: str
    """The image that it begins with, or that its parent does."""
    parent: "Stage | None"
    steps: tuple[dockerfile.Command, ...]
    outer_arguments: Mapping[str, str]

    @property
    def line(self) -> tuple["Stage", ...]:
        """It and those that it is made from, the oldest first."""
        return (*(self.parent.line if self.parent else ()), self)

    @property
    def first_config(self) -> Config:
        """Before its first instruction: that of its parent, without the latter's arguments."""
        return replace(self.parent.config, arguments={}) if self.parent else Config()

    @property
    def config(self) -> Config:
        """After its last instruction."""
        config = self.first_config
        for step in self.steps:
            config = config.after(step, self.outer_arguments)
        return config


def read_stages() -> dict[str, Stage]:
    """All stages by name, as they are without any `--build-arg`."""
    outer = Config()
    stages: dict[str, Stage] = {}
    for step in dockerfile.parse_file(str(DOCKERFILE)):
        if step.cmd == "FROM":
            image, _, name = step.value
            parent = stages.get(image)
            base = parent.base if parent else outer.expand(image)
            stages[name] = Stage(name, base, parent, (), outer.arguments)
        elif stages:
            name = next(reversed(stages))
            stages[name] = replace(stages[name], steps=(*stages[name].steps, step))
        else:
            outer = outer.after(step, {})
    return stages


def flags(step: dockerfile.Command) -> dict[str, str]:
    """`--from=code` and the like, without the dashes."""
    pairs = (flag.removeprefix("--").partition("=") for flag in step.flags)
    return {name: value for name, _, value in pairs}


def steps_of(stages: Iterable[Stage], cmd: str) -> list[tuple[Stage, dockerfile.Command]]:
    """All instructions of a kind, each with its stage."""
    return [(stage, step) for stage in stages for step in stage.steps if step.cmd == cmd]


def pins(name: str) -> dict[str, str]:
    """The versions in a file of constraints, by the project's name."""
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {project.lower().replace("_", "-"): version for project, version in pairs}
