"""Reads the answers of replays about the state that their steps start from, and compares two of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.run_files.rundir import ANSWERS, RunDirectory

FILE = f"{ANSWERS}/state.jsonl"
MAX_BYTES = 256 << 20
PARAMETERS, BUFFERS, OTHERS = "parameters", "buffers", "other-models"
OPTIMIZER, SETTINGS, SCHEDULE, SCALER = "optimizer", "settings", "schedule", "scaler"
METRICS, LOADER, DATA = "metrics", "loader-generator", "data"
GRADIENTS, MODULES, VARIABLES = "gradients", "module-settings", "variables"
BOUNDED = "further-variables"  # among the names of variables: others were not read
GENERATORS = {"torch": "PyTorch generator", "python": "Python generator", "numpy": "NumPy generator"}
OF_TENSORFLOW = ("seed generators of Keras", "TensorFlow generator")
RANDOM = (*GENERATORS.values(), "GPU generators", *OF_TENSORFLOW, LOADER)
PARTS = (  # causes before effects
    PARAMETERS, BUFFERS, OTHERS, METRICS, OPTIMIZER, SETTINGS, SCHEDULE, SCALER, GRADIENTS, MODULES, *RANDOM,
    VARIABLES, DATA,
)  # fmt: skip
# These may differ without effect: only a step that differs shows one.
LATENT = frozenset({LOADER, GRADIENTS, MODULES, VARIABLES})

ALL = "*"  # the name of one digest for all of a part

Entries = Mapping[str, str]  # digests by name


class StateLine(msgspec.Struct, frozen=True):
    """One line of state.jsonl."""

    process: str
    step: int
    parts: dict[str, dict[str, str]] | None = None
    fetched: dict[str, int] | None = None
    calls: int | None = None
    problem: str = ""
    draws: str = ""  # settings by which a booster draws rows or columns


@dataclass
class StateSeries:
    """The answers of one process."""

    states: dict[int, Mapping[str, Entries]] = field(default_factory=dict)  # by step
    fetched: Mapping[str, int] | None = None  # batches by place, up to the first of these steps
    calls: int | None = None  # of models, in the first of these steps


@dataclass(frozen=True)
class PartDifference:
    """A part of the state that differs between two runs."""

    part: str
    step: int  # of the resumed run: the first at which it differs
    names: tuple[str, ...]
    is_idle: bool = False  # a generator that no step draws from
    sides: tuple[Entries, Entries] = ({}, {})  # of the whole run, and of the resumed one

    def described(self, names: Collection[str] | None = None) -> list[str]:
        """Return these names, or all, with both values of numbers."""
        chosen = [name for name in self.names if names is None or name in names]
        if self.part not in (MODULES, VARIABLES):
            return chosen
        whole, here = self.sides
        chosen.sort(key=lambda name: name not in here)  # what a loop leaves behind comes last
        values = [(name, whole.get(name), here.get(name)) for name in chosen]
        return [
            name if str(left).startswith("#") else f"{name}: {left} in the whole training, {_shown(right)} here"
            for name, left, right in values
        ]


def read(run: RunDirectory) -> tuple[dict[str, StateSeries], list[str]]:
    """Return the answers by process, and the problems that were logged."""
    series_by_process: dict[str, StateSeries] = {}
    problems: list[str] = []
    for line in _lines(run):
        series = series_by_process.setdefault(line.process, StateSeries())
        if line.problem:
            problems.append(line.problem)
        if line.draws:
            problems.append(
                f"each round draws rows or columns ({line.draws}), by a generator that no saved model holds: what is"
                " trained further may draw others"
            )
        if line.parts is not None:
            series.states[line.step] = line.parts
            series.fetched = line.fetched if series.fetched is None else series.fetched
        if line.calls is not None and series.calls is None:
            series.calls = line.calls
    return {process: answers for process, answers in series_by_process.items() if answers.states}, problems


def _lines(run: RunDirectory) -> Iterator[StateLine]:
    if not (run.path / FILE).exists():
        return
    with open(run.path / FILE, "rb") as file:
        data = file.read(MAX_BYTES)
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=StateLine)
        except msgspec.MsgspecError:
            raise ReprokitError(f"{run.path / FILE} holds a line that is none; try again") from None


def calls(answers: Mapping[str, StateSeries]) -> int:
    """Return how many calls of models the first step is made of; 0 if unknown."""
    return next((series.calls for series in answers.values() if series.calls is not None), 0)


def is_comparable(whole: Mapping[str, StateSeries], resumed: Mapping[str, StateSeries], offset: int) -> bool:
    """Return whether each process of a resumed run answered about a step that the whole run answered about."""
    return all(
        process in whole and any(step + offset in whole[process].states for step in series.states)
        for process, series in resumed.items()
    )


def differences(
    whole: Mapping[str, StateSeries], resumed: Mapping[str, StateSeries], offset: int
) -> list[PartDifference]:
    """Return the parts that differ, in the order of PARTS; the offset aligns the steps."""
    differing: dict[str, PartDifference] = {}
    for process in whole.keys() & resumed.keys():
        left, right = whole[process].states, resumed[process].states
        steps = [step for step in sorted(right) if step + offset in left]
        for step in steps:
            for part in right[step].keys() & left[step + offset].keys():
                names = _differing(part, left[step + offset][part], right[step][part])
                if names and part not in differing:
                    values = [
                        {repr(side[other_step].get(part)) for other_step in sides}
                        for side, sides in ((left, [other_step + offset for other_step in steps]), (right, steps))
                    ]
                    is_idle = part in RANDOM and len(steps) > 1 and all(len(distinct) == 1 for distinct in values)
                    both = left[step + offset][part], right[step][part]
                    differing[part] = PartDifference(part, step, tuple(names), is_idle, both)
    return [differing[part] for part in PARTS if part in differing]


def _differing(part: str, left: Entries, right: Entries) -> list[str]:
    """Return the differing names: of other models only common names count; loaded models may be renamed."""
    if ALL in left:
        together = hashlib.sha256(" ".join(right.values()).encode()).hexdigest()
        return [] if together.startswith(left[ALL]) else [ALL]
    if part not in (OTHERS, VARIABLES) and len(left) == len(right):
        right = dict(zip(left, right.values(), strict=True)) if left.keys() != right.keys() else right
    names = left.keys() & right.keys() if part == OTHERS else left.keys() | right.keys()
    if part == VARIABLES:  # what only the resumed script has, it does not lack
        names = left.keys() - {BOUNDED}
    return sorted(name for name in names if left.get(name) != right.get(name))


def variable_of(name: str) -> str:
    """Return the variable or attribute that a value is in: `e.py: a.b in f()` of `e.py: a.b[0].c in f()`."""
    head, _, rest = name.partition(": ")
    variable, function = re.split(r"\[| ", rest)[0], re.search(r" in \S+\(\)$", rest)
    return f"{head}: {variable}{function[0] if function else ''}"


def _shown(value: str | None) -> str:
    return "another value" if str(value).startswith("#") else "unset" if value is None else value
