"""Declares which parts of reprokit were active in a run, as data; presenters turn it into words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Code = Literal[
    "",
    "not-asked",  # the user switched it off
    "not-in-recording",  # nothing to compare a replay with
    "not-recorded",  # the run records no entropy
    "not-observed",  # no part of reprokit was active in the run
    "unavailable",  # the machine or the program does not allow it
    "no-rights",  # supervisor: set-user-ID programs gain no rights under it
    "gradients",  # trail: also gradients inside of graphs
]


class PartState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one part: `code` is what behavior may depend on, `why` is for people."""

    code: Code = ""
    why: str = ""


class Switch(PartState, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the supervisor, the trail, address randomization, and strace beside a profiled run."""

    state: Literal["on", "off"] = "on"

    @property
    def is_on(self) -> bool:
        return self.state == "on"

    @property
    def words(self) -> str:
        """`on`, or `off: the kernel does not allow it`."""
        return f"{self.state}: {self.why}" if self.why else self.state


class Loading(PartState, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the shim and the agent."""

    state: Literal["loaded", "not-loaded"] = "loaded"

    @property
    def is_loaded(self) -> bool:
        return self.state == "loaded"

    @property
    def words(self) -> str:
        """`loaded`, or `not loaded: the program is statically linked`."""
        name = self.state.replace("-", " ")
        return f"{name}: {self.why}" if self.why else name


class Uncovered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of entropy seen in a run that nothing recorded; `text` is for people."""

    source: Literal[
        "command", "program", "out-of-reach", "instructions", "vdso", "cpuid", "clock", "calendar", "memory", "ticks"
    ]
    text: str
    option: str = ""  # command-line option that could not be obeyed
    module: str = ""  # path of the library that holds the instructions


def words_of(part: Switch | Loading | None) -> str:
    """Return the state of a part in words; run.json of a running training may lack it."""
    return "not seen" if part is None else part.words


ON = Switch()
NOT_ASKED: Code = "not-asked"
WITHOUT_SUPERVISOR = Switch(state="off", code=NOT_ASKED, why="--no-supervisor")
WITHOUT_TRAIL = Switch(state="off", code=NOT_ASKED, why="--no-trail")
WITHOUT_SYSTEM_CALLS = Switch(state="off", code=NOT_ASKED, why="--no-system-calls")
WITH_GRADIENTS = Switch(code="gradients", why="with gradients in graphs")
LOADED = Loading()


def off(why: str, code: Code = "unavailable") -> Switch:
    """Return the state of an inactive part."""
    return Switch(state="off", code=code, why=why)


def not_loaded(why: str, code: Code = "unavailable") -> Loading:
    """Return the state of a part that was not loaded into the training's process."""
    return Loading(state="not-loaded", code=code, why=why)


# What of a recording a user can switch off.
SwitchedPart = Literal["trail", "console", "orders", "calendar", "supervisor"]


class SwitchOption(msgspec.Struct, frozen=True):
    """An option that switches a part off, and what is then not recorded."""

    option: str
    lost: str

    @property
    def reason(self) -> str:
        """Return why something is not known."""
        return f"switched off by {self.option}"

    @property
    def sentence(self) -> str:
        """Return what is not known, and why."""
        return f"{self.lost}: {self.reason}"


SWITCHES: Final[dict[SwitchedPart, SwitchOption]] = {
    "trail": SwitchOption("--no-trail", "what each step of the training was made of"),
    "console": SwitchOption("--no-console", "what was printed"),
    "orders": SwitchOption("--no-orders", "which thread or process came first"),
    "calendar": SwitchOption("--no-calendar", "the time of day"),
    "supervisor": SwitchOption("--no-supervisor", "what programs past the shim asked for"),
}


def off_in(parts: Iterable[SwitchedPart]) -> list[SwitchOption]:
    """Return the options that switched these parts off, without repetitions."""
    given = set(parts)
    return [option for part, option in SWITCHES.items() if part in given]
