"""Rewrites or omits volatile facts before two runs are compared, and lists the normalizations that were needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from reprokit.core.difference import Exclusion
from reprokit.diff.tracker_files import MLFLOW, WANDB_SUMMARY, kind_of

Replacement: TypeAlias = "str | Callable[[re.Match[str]], str]"

TEMPORARY_NAMES = "names that tempfile made up"
ADDRESSES = "memory addresses in the arguments of seeding calls"
INTERPRETER = "the directory of the Python interpreter in the command"
WORKING_DIRECTORY = "the working directory in the command"
EVENT_FILES = "time, host and process id in the names of TensorBoard event files"
TRACKER_RUNS = "times and run ids in the paths of files that Weights & Biases and MLflow write"
CONTAINERS = "time stamps inside zip containers"
CONTENTS = "what formats of files add by themselves: time stamps, the order of members, spaces"
ORDER = "the order in which threads wrote their lines"
SEED_LINES = "the lines of the script that seeding calls stand in"
PROCESS_IDS = "process ids"
RUN_IDS = "run ids"
HOSTS = "host names"
TIMES = "start times and durations"

_TEMPORARY = re.compile(r"(?<![A-Za-z0-9])(tmp|pymp-|torchelastic_)[a-z0-9_]{8}(?![A-Za-z0-9_])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_EVENTS = re.compile(r"events\.out\.tfevents\.\d+\.[^/]*?\.\d+\.(\d+)(?=[./]|$)")
_WANDB = re.compile(r"(?<![^/])((?:offline-)?run)-\d{8}_\d{6}-[^/]+(/|$)(?:run-[^/]+(\.wandb)$)?")
_MLFLOW = re.compile(
    r"(?<=/)[0-9a-f]{32}(?=/(?:artifacts|metrics|params|tags|inputs|outputs)/|/meta\.yaml$)|(?<=/m-)[0-9a-f]{32}(?=/)"
)
_WANDB_RUN = r"(?:.*/)?wandb/(?:offline-)?run-[^/]+/"
_TRACKER_FILES = (
    (re.compile(rf"{_WANDB_RUN}(?:logs/.+|tmp/.+)|(?:.*/)?wandb/debug[^/]*\.log"), "Weights & Biases"),
    (re.compile(rf"{_WANDB_RUN}files/(?:wandb-metadata\.json|config\.yaml|output\.log)"), "Weights & Biases"),
    (re.compile(r"(?:.*/)?\.config/(?:wandb|mlflow)/.+"), "the tracker's settings"),
)
_METRICS = (MLFLOW, WANDB_SUMMARY)  # formats of files of which only the values are compared


class Normalizations:
    """Applies normalizations and collects the names of those that changed something."""

    def __init__(self) -> None:
        self._applied: dict[str, None] = {}

    @property
    def applied(self) -> tuple[str, ...]:
        """Return the names of the normalizations, in the order in which they were first needed."""
        return tuple(self._applied)

    def add(self, *names: str) -> None:
        """Record that these normalizations were needed."""
        self._applied.update(dict.fromkeys(names))

    def ignore(self, name: str, left: object, right: object) -> None:
        """Record a normalization if two facts differ that are never compared."""
        if left != right:
            self.add(name)

    def path(self, path: str) -> str:
        """Return the path of an output without the parts that differ in every run."""
        path = self._rewrite(_TEMPORARY, r"\1????????", path, TEMPORARY_NAMES)
        path = self._rewrite(_WANDB, _wandb_run, path, TRACKER_RUNS)
        path = self._rewrite(
            _MLFLOW, lambda match: "ID" if path[: match.start()].endswith("m-") else "RUN", path, TRACKER_RUNS
        )
        return self._rewrite(_EVENTS, r"events.out.tfevents.TIME.HOST.PID.\1", path, EVENT_FILES)

    def argument(self, text: str) -> str:
        """Return the argument of a seeding call without memory addresses."""
        return self._rewrite(_ADDRESS, "0x...", text, ADDRESSES)

    def _rewrite(self, pattern: re.Pattern[str], replacement: Replacement, text: str, name: str) -> str:
        changed = pattern.sub(replacement, text)
        if changed != text:
            self.add(name)
        return changed


def _wandb_run(match: re.Match[str]) -> str:
    return f"{match[1]}-TIME-ID{match[2]}{'run-ID.wandb' if match[3] else ''}"


def excluded(path: str, normalized: str) -> tuple[Exclusion, str] | None:
    """Return why an output is not compared, as data and in words; None if it is compared."""
    for pattern, name in _TRACKER_FILES:
        if pattern.fullmatch(normalized):
            words = f"not compared: of an experiment tracker; {name} writes times, run ids and the like into it"
            return Exclusion.VOLATILE, words
    kind = kind_of(path)
    return (Exclusion.METRICS, f"its values are compared as metrics in files of {kind}") if kind in _METRICS else None
