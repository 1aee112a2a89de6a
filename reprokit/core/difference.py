"""The tree of differences that comparators build and presenters walk.

A node says what was compared and what came out; nothing here knows how it will be printed. The
verdict of a node with children is derived from theirs, so that it can never contradict them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal


class Verdict(Enum):
    """What came out of comparing one thing."""

    IDENTICAL = "identical"
    BOOKKEEPING = "bookkeeping"  # only times, names and the like differ, which no training and no result depends on
    TOLERATED = "tolerated"  # not bitwise identical, and within the tolerance that was asked for
    DIFFERENT = "different"
    MISSING = "missing"  # one side has it, the other does not: counts as a difference
    IGNORED = "ignored"  # differs only where the user declared that it may: counts as no difference
    NOT_COMPARED = "not-compared"  # both sides changed it, and what it is now is not known of both
    INFORMATION = "information"  # shown, never compared
    NOT_RECORDED = "not-recorded"  # neither side has it

    @property
    def differs(self) -> bool:
        return self in (Verdict.DIFFERENT, Verdict.MISSING)

    @property
    def is_same(self) -> bool:
        """Whether it was compared, and nothing but bookkeeping differs."""
        return self in (Verdict.IDENTICAL, Verdict.BOOKKEEPING)

    @property
    def not_bitwise(self) -> bool:
        """Whether bits differ, be it within a tolerance; those of bookkeeping do not count."""
        return self.differs or self is Verdict.TOLERATED


class Role(Enum):
    """How a difference stands to the others; the lower comes first."""

    OWN = 0
    END = 1  # a run ended early
    CONSEQUENCE = 2  # it may follow from that
    IDLE = 3  # of the state of a generator that nothing drew from: it can be no cause


class BookkeepingKind(Enum):
    """What a value says of a run itself instead of its training: never the same in two runs."""

    DURATION = "duration"
    RATE = "rate"
    DATE = "date"
    PROCESS_ID = "process id"
    PORT = "port"
    HOST = "host name"
    ID = "id"
    ADDRESS = "address"
    PATH = "path"
    DIRECTORY = "directory name"
    TEMPORARY_NAME = "temporary name"
    PROGRESS = "progress bar"

    def counted(self, number: int) -> str:
        """Return a number of these, such as "3 addresses"."""
        ending = "" if number == 1 else "es" if self.value.endswith("s") else "s"
        return f"{number} {self.value}{ending}"


class Exclusion(Enum):
    """Why a file that experiment trackers wrote is no output to compare."""

    VOLATILE = "times and run ids"
    METRICS = "compared as metrics"


class IgnoredThing(Enum):
    """What was ignored as declared: a whole file, a value in one, or a printed line."""

    FILE = "file"
    VALUE = "value"
    LINE = "line"


@dataclass(frozen=True)
class IgnoredCount:
    """How many things differ that one rule of the user's covers."""

    rule: str  # as it was declared
    thing: IgnoredThing
    count: int = 1


Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")


@dataclass(frozen=True)
class Difference:
    """One thing that was compared: a leaf with its own verdict, or a group of such things."""

    name: str
    judged: Verdict | None = None  # of a leaf; None in a group
    left: str = ""
    right: str = ""
    detail: str = ""  # one sentence of what it means
    can_change_results: bool = False  # of INFORMATION: a different value may lead to another result
    children: tuple[Difference, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict, hash=False)  # counted and measured, ready for JSON
    is_sentence: bool = False  # the detail names the thing and says its values
    lacking: Side | None = None  # the run that has nothing there, or ends before it
    role: Role = Role.OWN
    exclusion: Exclusion | None = None  # of NOT_RECORDED: left out on purpose
    ignored: tuple[IgnoredCount, ...] = ()  # what of it differs and does not count, as declared
    kind: BookkeepingKind | None = None  # of BOOKKEEPING
    count: int = 1  # of BOOKKEEPING: the number of values that the leaf stands for

    @property
    def verdict(self) -> Verdict:
        """The leaf's own verdict, or what follows from the children's."""
        if self.judged is not None:
            return self.judged
        verdicts = {child.verdict for child in self.children}
        if any(verdict.differs for verdict in verdicts):
            return Verdict.DIFFERENT
        order = (
            *(Verdict.NOT_COMPARED, Verdict.TOLERATED, Verdict.IGNORED),
            *(Verdict.INFORMATION, Verdict.BOOKKEEPING, Verdict.IDENTICAL),
        )
        for verdict in order:
            if verdict in verdicts:
                return verdict
        return Verdict.NOT_RECORDED

    @property
    def may_be_declared(self) -> bool:
        """Whether this is a leaf that differs, if only in bookkeeping: what the user declares comes before it."""
        return self.judged is not None and (self.judged.differs or self.judged is Verdict.BOOKKEEPING)

    def leaves(self) -> Iterator[Difference]:
        """Yield every leaf in causal order."""
        if self.judged is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def first(self) -> Difference | None:
        """Return the first leaf in causal order that differs, by role: where to look for the cause."""
        differing = (leaf for leaf in self.leaves() if leaf.verdict.differs)
        return min(differing, key=lambda leaf: leaf.role.value, default=None)

    def first_of(self, verdict: Verdict) -> Difference | None:
        """Return the first leaf in causal order with a verdict."""
        return next((leaf for leaf in self.leaves() if leaf.verdict is verdict), None)

    def first_tolerated(self) -> Difference | None:
        """Return the first leaf in causal order whose bits differ within the tolerance that was asked for."""
        return self.first_of(Verdict.TOLERATED)

    def decisive(self) -> Difference | None:
        """Return the leaf because of which the whole is not identical; None if it is."""
        return self.first() or self.first_of(Verdict.NOT_COMPARED) or self.first_tolerated()

    def bookkeeping(self) -> Counter[BookkeepingKind]:
        """Return how many values of each kind differ that are recognized as bookkeeping."""
        counts: Counter[BookkeepingKind] = Counter()
        for leaf in self.leaves():
            if leaf.kind is not None:
                counts[leaf.kind] += leaf.count
        return counts


def counts_of_ignored(node: Difference) -> Iterator[IgnoredCount]:
    """Yield what was ignored of a node and of all below it."""
    yield from node.ignored
    for child in node.children:
        yield from counts_of_ignored(child)


def overall(tree: Difference) -> Verdict:
    """What came out of a whole comparison; identical only if nothing is left that was not compared.

    Bookkeeping does not count.
    """
    if tree.verdict.differs:
        return Verdict.DIFFERENT
    lesser = (Verdict.NOT_COMPARED, Verdict.TOLERATED)
    return next((verdict for verdict in lesser if tree.first_of(verdict) is not None), Verdict.IDENTICAL)


def group(name: str, children: tuple[Difference, ...], detail: str = "") -> Difference:
    """Return a node whose verdict follows from its children, which stand in causal order."""
    return Difference(name, children=children, detail=detail)


def compared(name: str, left: str, right: str, meaning: str = "", *, same: bool | None = None) -> Difference:
    """Return a leaf for two values: different unless they are the same; an empty one was not recorded."""
    if not left and not right:
        return Difference(name, Verdict.NOT_RECORDED)
    if not left or not right:
        return missing(name, left, right, meaning)
    equal = left == right if same is None else same
    return Difference(name, Verdict.IDENTICAL if equal else Verdict.DIFFERENT, left, right, "" if equal else meaning)


def different(
    name: str,
    left: str,
    right: str,
    meaning: str,
    verdict: Verdict = Verdict.DIFFERENT,
    figures: Mapping[str, Any] | None = None,
    lacking: Side | None = None,
) -> Difference:
    """Return a leaf for what differs, whose meaning is a sentence that names it and says its values."""
    return Difference(name, verdict, left, right, meaning, figures=figures or {}, is_sentence=True, lacking=lacking)


def bookkeeping(name: str, left: str, right: str, kind: BookkeepingKind) -> Difference:
    """Return a leaf for two values that only say something of the runs themselves."""
    return Difference(name, Verdict.BOOKKEEPING, left, right, kind.value, kind=kind)


def more_bookkeeping(name: str, counts: Mapping[BookkeepingKind, int]) -> Iterator[Difference]:
    """Yield a leaf for each kind of bookkeeping that is only counted."""
    for kind, count in counts.items():
        meaning = f"{kind.counted(count)}, not named one by one"
        yield Difference(f"{name}: more", Verdict.BOOKKEEPING, detail=meaning, kind=kind, count=count)


def missing(name: str, left: str, right: str, meaning: str = "") -> Difference:
    """Return a leaf for what only one side has."""
    side = "left" if left else "right"
    meaning = meaning or f"only the {side} run has it"
    return Difference(name, Verdict.MISSING, left, right, meaning, lacking=lacking(left, right))


def lacking(left: object, right: object) -> Side | None:
    """Return which of two sides has nothing where the other has something."""
    if bool(left) == bool(right):
        return None
    return "right" if left else "left"


def information(name: str, left: str, right: str, meaning: str = "", *, can_change_results: bool = False) -> Difference:
    """Return a leaf that is shown and never compared."""
    absent = lacking(left, right)
    return Difference(name, Verdict.INFORMATION, left, right, meaning, can_change_results, lacking=absent)
