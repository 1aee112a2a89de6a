"""Counts what was observed: how often something was seen, where, in which processes, and what was measured of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from reprokit.findings import MAX_PLACES, CodePlace, Confirmed, Finding
from reprokit.profiling.lines import MAX_TEXT, ConfirmedCall, place

MAX_KNOWN_PLACES = 1000  # of one thing, while lines are read
DIFFERENT = frozenset({"different", "varies"})
Key = TypeVar("Key")


@dataclass
class Occurrences:
    """How often something was seen, where, and in which processes."""

    calls: Counter[object] = field(default_factory=Counter)  # by process
    places: Counter[CodePlace] = field(default_factory=Counter)

    def add(self, process: object, calls: int, where: Iterable[CodePlace] = ()) -> None:
        """Count some calls, made at these places."""
        self.calls[process] += calls
        for code_place in where:
            self.add_place(code_place, calls)

    def add_place(self, code_place: CodePlace, calls: int) -> None:
        """Count some of the calls at a place."""
        if code_place in self.places or len(self.places) < MAX_KNOWN_PLACES:
            self.places[code_place] += max(calls, 1)

    def scale(self, factors: Mapping[object, float]) -> None:
        """Count the calls of steps that were not looked at, by a factor for each process."""
        for process in self.calls:
            self.calls[process] = round(self.calls[process] * factors.get(process, 1.0))

    @property
    def where(self) -> list[CodePlace]:
        """Its places, the most frequent first."""
        return [code_place for code_place, _ in self.places.most_common(MAX_PLACES)]

    def finding(self, kind: str, subject: str, verdict: str, why: str, rank: float, **details: Any) -> Finding:
        """Return what is to be said of it."""
        details.setdefault("shows", ["run-to-run"])
        return Finding(
            id=f"{kind}/{subject}"[:MAX_TEXT],
            kind=kind,
            subject=subject[:MAX_TEXT],
            where=self.where,
            calls=self.calls.total(),
            processes=len(self.calls),
            why=why,
            rank=rank,
            verdict=verdict,
            **details,
        )


def occurrences_of(table: dict[Key, Occurrences], key: Key, most: int) -> Occurrences:
    """Return what was seen under this key; beyond so many keys it is counted for nobody."""
    return table.setdefault(key, Occurrences()) if key in table or len(table) < most else Occurrences()


class GroupKey(NamedTuple):
    """The facts that all calls of a group share: direction, device, and what is known of them."""

    kind: str
    framework: str
    subject: str
    direction: str
    device: str
    fact: str  # empty where nothing is known


@dataclass
class Group:
    """The calls of one group so far."""

    version: str = ""
    seen: Occurrences = field(default_factory=Occurrences)
    guilty: dict[CodePlace, None] = field(default_factory=dict)  # where it was measured to vary, in the order found
    measured: list[ConfirmedCall] = field(default_factory=list)

    def confirm(self, process: int, call: ConfirmedCall) -> None:
        """Take in what came out when one of the calls was executed again."""
        self.version = self.version or call.version
        where = [place(frame) for frame in call.where[:1]]
        self.seen.add(process, 0, [] if self.seen.places else where)
        self.measured.append(call)
        if call.results > 1:
            self.guilty.update(dict.fromkeys(where))

    @property
    def where(self) -> list[CodePlace]:
        """Its places: those first where it was measured to vary, then the most frequent."""
        return list(dict.fromkeys([*self.guilty, *self.seen.where]))[:MAX_PLACES]

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
    """Return the worst outcome by condition: different if any call was."""
    worst: dict[str, str] = {}
    for outcome in outcomes:
        for condition, result in list(outcome.items())[:64]:
            if worst.get(condition) not in DIFFERENT:
                worst[condition] = result
    return worst
