"""Groups what was observed: the calls of an operator in one direction on one device, about which one thing is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from reprokit.findings import MAX_PLACES, CodePlace, Confirmed
from reprokit.profiling.lines import ConfirmedCall, Frame, place

MAX_KNOWN_PLACES = 1000  # of one group, while lines are read
DIFFERENT = frozenset({"different", "varies"})


class GroupKey(NamedTuple):
    """What the members of a group have in common."""

    kind: str
    framework: str
    subject: str
    direction: str
    device: str
    fact: str  # empty where nothing is known


@dataclass
class Group:
    """What is known of one group so far."""

    version: str = ""
    calls: Counter[int] = field(default_factory=Counter)  # by process
    places: Counter[CodePlace] = field(default_factory=Counter)
    guilty: dict[CodePlace, None] = field(default_factory=dict)  # where it was measured to vary, in the order found
    measured: list[ConfirmedCall] = field(default_factory=list)

    def add(self, process: int, version: str, calls: int, where: Iterable[Frame]) -> None:
        """Count some calls, made at the innermost of these frames."""
        self.version = self.version or version
        self.calls[process] += calls
        for frame in list(where)[:1]:
            found = place(frame)
            if found in self.places or len(self.places) < MAX_KNOWN_PLACES:
                self.places[found] += max(calls, 1)

    def confirm(self, process: int, call: ConfirmedCall) -> None:
        """Take in what came out when one of the calls was executed again."""
        self.version = self.version or call.version
        self.calls[process] += 0
        self.measured.append(call)
        for frame in call.where[:1]:
            if call.results > 1:
                self.guilty[place(frame)] = None
            if not self.places:
                self.places[place(frame)] += 1

    @property
    def where(self) -> list[CodePlace]:
        """Its places: those first where it was measured to vary, then the most frequent."""
        return list(dict.fromkeys([*self.guilty, *(found for found, _ in self.places.most_common())]))[:MAX_PLACES]

    @property
    def confirmed(self) -> Confirmed | None:
        """The worst that was measured; None where nothing was tried."""
        if not self.measured:
            return None
        worst = max(self.measured, key=lambda call: (call.results, call.repeats))
        return Confirmed(
            repeats=worst.repeats,
            results=worst.results,
            threads=_worst(call.threads for call in self.measured),
            capabilities=_worst(call.capabilities for call in self.measured),
            problem="" if worst.repeats else worst.problem,
        )


def _worst(outcomes: Iterable[dict[str, str]]) -> dict[str, str]:
    """By condition: different where any of the calls was."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        for condition, result in list(outcome.items())[:64]:
            if found.get(condition) not in DIFFERENT:
                found[condition] = result
    return found
