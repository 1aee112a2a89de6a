"""Declares the lines of a study's results, one for each run and each pair, from which an interrupted study resumes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

MAX_VALUES: Final = 10_000  # values per series
MAX_LINE: Final = 64 << 20  # bytes of one result as a line

Part = Literal["first", "second"]
Mode = Literal["untouched", "observed", "recorded", "replayed"]
Outcome = Literal["finished", "failed", "timeout", "lost"]
Count = Annotated[int, msgspec.Meta(ge=0)]
R = TypeVar("R")


class PairPlace(msgspec.Struct, frozen=True, array_like=True):
    """One pair in the order: the round is the number of the pair."""

    pair: Annotated[int, msgspec.Meta(ge=1)]
    setup: str

    @property
    def name(self) -> str:
        """Return the pair's name, which is also that of its task."""
        return f"{self.setup}-{self.pair:02d}"


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The values that one metric had through a run."""

    name: str
    values: list[float | None]  # at most MAX_VALUES; NaN and infinities are texts in JSON
    by: Literal["epoch", "step"]


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one class, and how many of them were predicted right."""

    label: str
    count: Count
    correct: Count


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of a run."""

    name: str
    task: Literal["classification", "regression"]
    count: Count
    accuracy: float | None = None
    labels: list[Label] = []
    mae: float | None = None
    predictions: str = ""  # file below predictions/ of the study


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of results.jsonl: a finished attempt."""

    setup: str
    pair: Annotated[int, msgspec.Meta(ge=1)]
    part: Part
    mode: Mode
    seed: int | None = None
    outcome: Outcome
    ended: str = ""  # in words
    started: str = ""  # ISO 8601, UTC
    seconds: float
    processor: float  # seconds of processors, of all its processes
    memory: int | None = None  # bytes at its peak
    stored: Count = 0  # bytes of the run directory
    profile: Count = 0  # bytes of it that are entropy
    epochs: int | None = None
    series: list[MetricSeries] = []
    evaluations: list[Evaluation] = []
    weights: str = ""  # digest of all
    outputs: str = ""  # digest of all
    host: str = ""
    worker: str = ""
    together: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of runs at the same time
    notes: list[str] = []

    @property
    def place(self) -> PairPlace:
        """Return the pair that the run is of."""
        return PairPlace(self.pair, self.setup)


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of pairs.jsonl: the comparison of the runs of a pair."""

    setup: str
    pair: Annotated[int, msgspec.Meta(ge=1)]
    identical: bool | None = None  # None: nothing to compare, or a run failed
    process_equal: bool | None = None
    evaluation_equal: bool | None = None
    words: str = ""  # the verdict
    categories: list[str] = []  # categories that differ
    ignored: dict[str, Count] = {}  # differences that do not count, by what was declared
    inconsistent: int | None = None  # number of differing predictions
    predictions: int | None = None  # number of all predictions
    largest_class_difference: float | None = None  # of the accuracy per class
    accuracy_difference: float | None = None
    mae_difference: float | None = None
    notes: list[str] = []

    @property
    def place(self) -> PairPlace:
        """Return the pair that was compared."""
        return PairPlace(self.pair, self.setup)


def encode(result: RunResult | PairResult) -> bytes:
    """Return a result as one line of JSON, without its end."""
    return msgspec.json.encode(_plain(msgspec.to_builtins(result)))


def decode(line: bytes, kind: type[R]) -> R:
    """Return the result that a line holds; raises msgspec's errors."""
    return msgspec.json.decode(line, type=kind, strict=False)  # "nan" must be read as a number


def _plain(value: Any) -> Any:
    """Return a value that JSON can encode, which has neither NaN, infinities nor undecodable bytes of file names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
