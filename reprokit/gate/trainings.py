"""What a gate is to check: a command, or the trainings of a reprokit.toml.

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
console = false                 # what it prints is no result
[training.require]
fidelity = true
overhead = 1.5
findings = "none"               # or "accepted"
forbid_rules = ["DyingReLU"]    # as reprokit rules --rule
accepted = "accepted.json"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from reprokit import toml_text
from reprokit.errors import BadGate
from reprokit.gate.start_conditions import Name

FILE: Final = "reprokit.toml"
MAX_BYTES = 1 << 20
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Requirements(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requirements beside identical results."""

    fidelity: bool = False  # every request of the replay was answered exactly
    overhead: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None  # recorded with its patches, to bare
    findings: Literal["none", "accepted"] | None = None  # what is blamed and not patched; beyond the accepted
    ranks_agree: bool = False  # parameters of all ranks are equal after every step
    exact_resume: bool = False  # interrupted and resumed, it is the training that was not
    forbid_rules: tuple[Text, ...] = ()  # none of these raises an alarm
    accepted: Text | None = None  # file of the findings that were accepted

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
    vary: tuple[Name | Literal["all"], ...] = ()  # what else a further replay of each pair finds otherwise
    clean: bool = False  # each run starts in a fresh copy of the checkout
    locate: bool = False  # where a pair differs, the first divergent operator of PyTorch is looked for
    console: bool = True  # what it prints is kept and compared
    allow_state: bool = False  # what a run or an earlier one left may be read by the next
    require: Requirements = Requirements()


class GateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of reprokit.toml."""

    training: Annotated[tuple[GateTraining, ...], msgspec.Meta(min_length=1, max_length=1000)]


def read(path: Path, names: tuple[str, ...]) -> list[GateTraining]:
    """Return the trainings of a file, all or those of these names; raises BadGate with one line."""
    advice = f"put the command behind --, or list trainings in {FILE}"
    found = toml_text.read(path, GateFile, MAX_BYTES, BadGate, advice).training
    known = [one.name for one in found]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice is not None:
        raise BadGate(f"{path}: two trainings have the name {twice}")
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise BadGate(f"{path} holds no training {missing}; it has {', '.join(known)}")
    return [one for one in found if not names or one.name in names]
