"""What a gate is to check: a command, or the trainings of a reprokit.toml.

ignore = ["log/*.txt"]          # as in every reprokit.toml, see user_config
[[training]]
name = "digits"
command = ["python", "train.py", "--epochs", "2"]
directory = "examples"          # from this file's own; "." if it is left out
recipe = "recipe.toml"          # likewise; of reprokit reproduce
data = ["data"]
pairs = 2
vary = ["time-zone", "cores"]   # or ["all"]
clean = true                    # each run in a fresh copy of the checkout
allow_state = true
locate = true                   # name the operator by which a pair parts
clock = true                    # the time of day is recorded and given again
console = false                 # what it prints is no result
calendar = false                # the time of day is another one in the replay
[training.require]
fidelity = true
overhead = 1.5
findings = "none"               # or "accepted"
forbid_rules = ["DyingReLU"]    # as reprokit rules --rule
accepted = "accepted.json"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import BadGate
from reprokit.gate.start_conditions import Name
from reprokit.run_files.user_config import FILE, UserConfig

MAX_BYTES = 1 << 20
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Requirements(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requirements beside identical results."""

    fidelity: bool = False  # every request of the replay was answered exactly
    overhead: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None  # limit of recorded to bare time
    findings: Literal["none", "accepted"] | None = None  # allowed blamed and unpatched findings
    ranks_agree: bool = False  # parameters of all ranks are equal after every step
    exact_resume: bool = False  # an interrupted and resumed training equals the whole one
    forbid_rules: tuple[Text, ...] = ()  # none of these raises an alarm
    accepted: Text | None = None  # file of accepted findings

    def __post_init__(self) -> None:
        if self.findings == "accepted" and self.accepted is None:
            raise ValueError('findings = "accepted" needs accepted = FILE')


class GateTraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training to check."""

    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    command: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=1000)]
    directory: Text = "."
    recipe: Text | None = None
    data: tuple[Text, ...] = ()
    pairs: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    vary: tuple[Name | Literal["all"], ...] = ()  # variations under which a further replay of each pair starts
    clean: bool = False  # each run starts in a fresh copy of the checkout
    locate: bool = False  # locate the first divergent operator of a pair that differs
    clock: bool = False  # record the time of day too
    console: bool = True  # whether printed text is kept and compared
    calendar: bool = True  # whether a replay is told the recorded time of day
    allow_state: bool = False  # whether runs may read files that earlier ones left
    require: Requirements = Requirements()


class GateFile(UserConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of reprokit.toml, with what all commands read in it."""

    training: Annotated[tuple[GateTraining, ...], msgspec.Meta(min_length=1, max_length=1000)]


def read(path: Path, names: tuple[str, ...]) -> list[GateTraining]:
    """Return the trainings of a file, all or those of these names; raises BadGate with one line."""
    advice = f"put the command behind --, or list trainings in {FILE}"
    trainings = toml_text.read(path, GateFile, MAX_BYTES, BadGate, advice).training
    known = [training.name for training in trainings]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice is not None:
        raise BadGate(f"{path}: two trainings have the name {twice}")
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise BadGate(f"{path} holds no training {missing}; it has {', '.join(known)}")
    return [training for training in trainings if not names or training.name in names]
