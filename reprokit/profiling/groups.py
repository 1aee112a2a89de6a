"""Counts observed operations: how often, where and in which processes they occurred, and their measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from reprokit.profiling.lines import MAX_TEXT, ConfirmedCall, place
from reprokit.run_files.findings import MAX_PLACES, CodePlace, Confirmed, Finding

MAX_KNOWN_PLACES = 1000  # of one operation, while lines are read
DIFFERENT = frozenset({"different", "varies"})
Key = TypeVar("Key")


@dataclass
class Occurrences:
    """Numbers of calls of an operation, by process and by place."""

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
        """Extrapolate calls to unobserved steps, by a factor for each process."""
        for process in self.calls:
            self.calls[process] = round(self.calls[process] * factors.get(process, 1.0))

    @property
    def where(self) -> list[CodePlace]:
        """Return its places, the most frequent first."""
        return [code_place for code_place, _ in self.places.most_common(MAX_PLACES)]

    def finding(self, kind: str, subject: str, verdict: str, why: str, rank: float, **details: Any) -> Finding:
        """Return a finding about the operation."""
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
    """Return the occurrences under this key; unlisted ones if the table is full."""
    return table.setdefault(key, Occurrences()) if key in table or len(table) < most else Occurrences()


class GroupKey(NamedTuple):
    """The properties that all calls of a group share."""

    kind: str
    framework: str
    subject: str
    direction: str
    device: str
    fact: str  # id of the known fact; empty if there is none


@dataclass
class Group:
    """The calls of an operator with equal properties."""

    version: str = ""
    occurrences: Occurrences = field(default_factory=Occurrences)
    varying_places: dict[CodePlace, None] = field(default_factory=dict)  # where a variation was measured
    measured: list[ConfirmedCall] = field(default_factory=list)

    def confirm(self, process: int, call: ConfirmedCall) -> None:
        """Add the result of re-executing one of the calls."""
        self.version = self.version or call.version
        where = [place(frame) for frame in call.where[:1]]
        self.occurrences.add(process, 0, [] if self.occurrences.places else where)
        self.measured.append(call)
        if call.results > 1:
            self.varying_places.update(dict.fromkeys(where))

    @property
    def where(self) -> list[CodePlace]:
        """Return its places: first those with a measured variation, then the most frequent."""
        return list(dict.fromkeys([*self.varying_places, *self.occurrences.where]))[:MAX_PLACES]

    @property
    def confirmed(self) -> Confirmed | None:
        """Return the worst measurement; None if no call was re-executed."""
        if not self.measured:
            return None
        worst = max(self.measured, key=lambda call: (call.results, call.repeats))
        return Confirmed(
            repeats=worst.repeats,
            results=worst.results,
            threads=_worst(call.threads for call in self.measured),
            capabilities=_worst(call.capabilities for call in self.measured),
            problem=next((call.problem for call in self.measured if call.problem and not call.repeats), ""),
        )


def _worst(outcomes: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return the worst outcome by condition: different if any call differed."""
    worst: dict[str, str] = {}
    for outcome in outcomes:
        for condition, result in list(outcome.items())[:64]:
            if worst.get(condition) not in DIFFERENT:
                worst[condition] = result
    return worst
