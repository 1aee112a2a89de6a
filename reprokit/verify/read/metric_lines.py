"""Defines the lines of metrics.jsonl: the required fields of each kind, and which of them are compared."""

from __future__ import annotations

import math
import struct
from typing import Annotated, Any

import msgspec

from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.run_files.numbers import content_of
from reprokit.verify.read.normalization import Normalizations

FORMAT = 1  # of an agent's lines: reprokit/agent/start.py

Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
Hexadecimal = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})+$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Part = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Whole = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]

# Format codes of the struct module for the floating-point types that it supports.
_FLOATS = {"float16": ">e", "float32": ">f", "float64": ">d"}


class MetricValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, truth value or text of a metric; floating-point numbers by their bits."""

    dtype: str
    bits: Hexadecimal | None = None
    decimal: int | float | bool | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        code = _FLOATS.get(self.dtype)
        if code is not None and (self.bits is None or len(self.bits) != 2 * struct.calcsize(code)):
            raise ValueError(f"a value of type {self.dtype} lacks its bits")
        if code is not None and self.bits is not None and not _rounds_to(code, self.bits, self.decimal):
            raise ValueError(f"decimal {self.decimal} and bits {self.bits} of a value contradict each other")
        if self.bits is None and self.decimal is None and self.text is None:
            raise ValueError("a value holds neither bits nor decimal nor text")


def _rounds_to(code: str, bits: str, decimal: float | None) -> bool:
    """Return whether the decimal rounds to the bits; NaN and infinity must have none."""
    if decimal is None:
        return not math.isfinite(struct.unpack(code, bytes.fromhex(bits))[0])
    try:
        return struct.pack(code, decimal).hex() == bits
    except (OverflowError, struct.error):
        return False


class MetricLine(msgspec.Struct, frozen=True, tag_field="k"):
    """The fields of every line."""

    p: str
    n: Count
    t: float


class AgentStartLine(MetricLine, frozen=True, tag="agent"):
    """States that a Python process started."""

    python: str
    implementation: str
    executable: str
    argv: list[str]
    pid: int
    agent: int


class FrameworkLine(MetricLine, frozen=True, tag="framework"):
    """States that a framework was imported."""

    name: str
    version: str


class SeedLine(MetricLine, frozen=True, tag="seed"):
    """States that the script or a library seeded a generator."""

    call: str
    argument: str
    where: str | None
    thread: str = ""
    value: Any = None
    asked: str | None = None


class SeedCountLine(MetricLine, frozen=True, tag="seed_count"):
    """States how often a place seeded; not every one of its calls has a line."""

    call: str
    where: str
    thread: str
    count: Count


class LossLine(MetricLine, frozen=True, tag="loss"):
    """Holds a loss on which backward() was called."""

    name: str
    step: Count
    value: MetricValue


class EpochLine(MetricLine, frozen=True, tag="epoch"):
    """States that an epoch ended, with its values."""

    name: str
    epoch: Count
    values: dict[str, MetricValue]
    steps: Count | None


class HistoryLine(MetricLine, frozen=True, tag="history"):
    """States that fit returned, with its history."""

    name: str
    values: dict[str, list[MetricValue]]


class EvaluateLine(MetricLine, frozen=True, tag="evaluate"):
    """States that evaluate returned, with its scores."""

    name: str
    values: dict[str, MetricValue]


class PredictLine(MetricLine, frozen=True, tag="predict"):
    """States that predict returned, with a digest of its result."""

    name: str
    digest: Digest
    shape: Any
    dtype: Any


class ColumnFacts(msgspec.Struct, frozen=True):
    """The type of predictions or true values, and where they are stored if they were kept."""

    dtype: Annotated[str, msgspec.Meta(max_length=40)]
    shape: Annotated[list[Size], msgspec.Meta(min_length=1, max_length=64)]
    digest: Digest
    file: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}-[0-9]{1,9}\.npy\Z")] | None = None
    row: Size | None = None


class ClassCount(msgspec.Struct, frozen=True, array_like=True):
    """The number of right predictions among those with a true label."""

    label: str
    right: Part
    all: Whole


class EvaluationLine(MetricLine, frozen=True, kw_only=True, tag="evaluation"):
    """Holds a model's predictions and how they compare with the true values."""

    name: str
    calls: Count
    task: Annotated[str, msgspec.Meta(pattern="^(classification|regression)$")]
    form: Annotated[str, msgspec.Meta(pattern="^(labels|scores|probability|multilabel|values)$")]
    why: str
    predictions: ColumnFacts
    truth: ColumnFacts | None = None
    accuracy: tuple[Part, Whole] | None = None
    classes: list[ClassCount] | None = None
    error: MetricValue | None = None
    labels: list[str] | None = None
    problem: str = ""


class TensorLine(msgspec.Struct, frozen=True, array_like=True):
    """Holds one tensor of a model or optimizer."""

    name: str
    dtype: str
    shape: list[int]
    digest: Digest


class WeightsLine(MetricLine, frozen=True, kw_only=True, tag="weights"):
    """Holds the weights of a model, or the state of an optimizer, at an epoch or at the end."""

    at: Annotated[str, msgspec.Meta(pattern="^(epoch|end)$")]
    epoch: Count | None = None
    object: str
    digest: Digest
    tensors: list[TensorLine] | None = None


class OptimizerLine(MetricLine, frozen=True, kw_only=True, tag="optimizer"):
    """Holds the number of steps of an optimizer."""

    object: str
    steps: Count | None


class OptimizersLine(MetricLine, frozen=True, tag="optimizers"):
    """Holds how many optimizers the script made, whether or not they took steps; never compared."""

    name: str
    made: Count


class RandomStateLine(MetricLine, frozen=True, tag="random_state"):
    """Holds the state of a random generator at the end."""

    name: str
    digest: Digest


class LogLine(MetricLine, frozen=True, kw_only=True, tag="log"):
    """Holds a value that the script passed to reprokit.log."""

    name: str
    step: int | None = None
    epoch: int | None = None
    value: MetricValue


class CollectiveLine(MetricLine, frozen=True, tag="collective"):
    """Holds a collective's result in this process; late lines stand for several calls."""

    name: str
    step: Count
    calls: Count
    operation: str
    ranks: Count
    dtype: str
    shape: list[Size]
    digest: Digest
    whole: bool  # False: the digest is of parts of the result, or of several calls


class ComputeLine(MetricLine, frozen=True, tag="compute"):
    """Holds how a library uses the machine: numbers of threads, and its choice of code."""

    name: str
    library: str
    facts: dict[str, bool | int | str | list[str] | None]


class ListingLine(MetricLine, frozen=True, tag="listing"):
    """States that a directory was listed."""

    name: str
    count: Count
    order: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    names: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    whole: bool


class VariableLine(MetricLine, frozen=True, tag="variable"):
    """States that the user's code read an environment variable."""

    name: str
    where: str
    set: bool
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None = (
        None  # None: only its presence was read, or there was no key
    )
    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] = ""  # identifies the digest's key
    undigested: bool = False  # whether its value was read without a key for a digest


class TrackerLine(MetricLine, frozen=True, tag="tracker"):
    """States that a run of an experiment tracker was opened; never compared."""

    name: str
    run: str
    place: str
    group: str


class WarningLine(MetricLine, frozen=True, tag="warning"):
    """Holds a warning of the agent."""

    text: str
    code: str = ""
    path: str = ""
    said: bool = False  # whether the agent has printed it, too


class PatchedLine(MetricLine, frozen=True, tag="patch"):
    """States whether a patch was applied in this process; run.json has its final state."""

    id: str
    value: str
    state: str
    why: str


class CaptureUnavailableLine(MetricLine, frozen=True, tag="capture_unavailable"):
    """States that a framework's steps could not be captured; never compared, summarized in run.json."""

    framework: str
    version: str
    reason: str


class OrderLine(MetricLine, frozen=True, tag="order"):
    """Holds the actors that had turns at one place, in order; never compared."""

    track: str
    actors: list[str]
    turns: str
    count: Count


class OrdersLine(MetricLine, frozen=True, tag="orders"):
    """Holds how a replay repeated turns; never compared, summarized in run.json."""

    exact: Count
    moved: Count
    unused: Count


class EndLine(MetricLine, frozen=True, tag="end"):
    """States that the process came to the end of its program."""


KINDS: dict[str, type[MetricLine]] = {str(line.__struct_config__.tag): line for line in MetricLine.__subclasses__()}
END_WEIGHTS = "weights at the end"  # compared apart from the trail of digests at epochs

# Kinds that hold results of a training: two runs without any of them have nothing to compare.
OUTCOMES = frozenset(
    {"loss", "epoch", "history", "evaluate", "predict", "evaluation", "weights", END_WEIGHTS, "log", "collective"}
)

_COMMON = ("k", "p", "n", "t")
_VOLATILE = {"seed": (*_COMMON, "where", "thread", "asked")}


def checked(raw: dict[str, Any]) -> MetricLine | None:
    """Return the line as a struct; None for a kind that this version does not know.

    Raise RunDamaged if the line lacks a field that its kind requires.
    """
    kind = raw.get("k")
    try:
        if not isinstance(kind, str):
            raise ValueError("a line without its kind, k")
        if kind not in KINDS:
            msgspec.convert({**raw, "k": "end"}, EndLine)
            return None
        line = msgspec.convert(raw, KINDS[kind])
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
        raise RunDamaged(f"{' '.join(str(error).split())}; the run cannot be used") from None
    if isinstance(line, AgentStartLine) and line.agent > FORMAT:
        raise RunTooNew(f"written by an agent of format {line.agent}, this reprokit reads up to {FORMAT}")
    return line


def content(raw: dict[str, Any], normalizations: Normalizations) -> bytes:
    """Return the compared part of a line as bytes, which are equal exactly if that part is.

    Values are compared by type and bits, so that NaN equals NaN and the decimal's spelling does not matter.
    Keys that this version does not know are compared as well.
    """
    kind = raw["k"]
    if kind in ("loss", "log") and (number := content_of(raw)) is not None:
        return number
    compared = raw.copy()
    for key in _VOLATILE.get(kind, _COMMON):
        compared.pop(key, None)
    if "value" in compared:
        compared["value"] = exact(compared["value"])
    if kind == "seed":
        compared["argument"] = normalizations.argument(compared["argument"])
    if kind == "evaluation":
        compared.update({side: _without_place(compared[side]) for side in ("predictions", "truth") if side in compared})
        compared["error"] = exact(compared.get("error"))
    if isinstance(compared.get("values"), dict):
        compared["values"] = {name: exact(value) for name, value in compared["values"].items()}
    try:
        return msgspec.json.encode(compared, order="sorted")
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return repr(sorted(compared.items())).encode()


def _without_place(column: Any) -> Any:
    """Return a column without the place of its rows, which may differ between runs."""
    return column and {key: column[key] for key in column if key not in ("file", "row")}


def exact(value: Any) -> Any:
    """Return a value by its type and bits, so that NaN equals NaN; a value without bits is returned unchanged."""
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, dict) and value.get("bits") is not None:
        return [value.get("dtype"), value["bits"]]
    return value


def shown(value: MetricValue) -> str:
    """Return a value for users: its shortest decimal and its bits, if it has any."""
    code = _FLOATS.get(value.dtype)
    if value.bits is None:
        return value.text if value.text is not None else str(value.decimal)
    if code is None:
        return f"{value.decimal} ({value.bits})" if value.decimal is not None else f"{value.dtype} {value.bits}"
    return f"{_shortest(code, value.bits)} ({value.bits})"


def _shortest(code: str, bits: str) -> str:
    """Return the shortest decimal that rounds to these bits."""
    number = struct.unpack(code, bytes.fromhex(bits))[0]
    for digits in range(1, 18):
        text = f"{number:.{digits}g}"
        is_exact = math.isfinite(number) and _rounds_to(code, bits, float(text))
        if is_exact:
            return text
    return str(number)
