"""Declares what of a recording a user can switch off, by which option, and what is then not known of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

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
    """Return the options that switched these parts off, each once."""
    given = set(parts)
    return [option for part, option in SWITCHES.items() if part in given]
