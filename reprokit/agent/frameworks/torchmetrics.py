"""torchmetrics: the predictions and targets of every update, and the value of every compute.

A batch on a GPU is copied there and read together with others, so that no step waits for it. forward calls update and
compute internally: it is recorded as one update.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local
from functools import partial, wraps

from ..core.agent import Adapter
from ..core.exact_values import described
from ..core.patching import Function, replace
from ..predictions import predictions_of
from ..predictions.log import EvaluationTally, aligned
from ..pytorch.tensors import is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

MAX_PENDING = 64  # batches on a GPU that wait to be read together
MAX_PENDING_BYTES = 64 << 20


class MetricRecord:
    """The state of one metric: its updates since the last reset."""

    def __init__(self, name: str, task: str | None) -> None:
        self.name = name
        self.task = task
        self.updates = 0
        self.pending: list[tuple[Any, Any]] = []
        self.pending_bytes = 0
        self.tally: EvaluationTally | None = None
        self.is_written = False  # nothing was added since


class TorchmetricsAdapter(Adapter):
    """Patches torchmetrics.metric.Metric."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._inside = _local()  # .forward: whether the thread is in a watched call
        self._records: dict[int, MetricRecord] = {}

    def forget(self) -> None:
        self._records.clear()

    def instrument(self, name: str, module: Any) -> None:
        if name == "torchmetrics":
            super().instrument(name, module)
            return
        replace(module.Metric, "_wrap_update", partial(self._make_wrap, self._note_update))
        replace(module.Metric, "_wrap_compute", partial(self._make_wrap, self._note_compute))
        replace(module.Metric, "forward", self._make_forward)
        replace(module.Metric, "reset", self._make_reset)

    def finish(self) -> None:
        for record in list(self._records.values()):
            self._agent.attempt(self._end, record)

    def _record(self, metric: Any) -> MetricRecord:
        key = id(metric)
        record = self._records.get(key)
        if record is None:
            record = MetricRecord(self._agent.name(type(metric).__name__), _task(metric))
            self._records[key] = record
            weakref.finalize(metric, self._agent.attempt, self._metric_ends, key, record).atexit = False
        return record

    def _metric_ends(self, key: int, record: MetricRecord) -> None:
        if self._records.get(key) is record:
            del self._records[key]
            self._end(record)

    # What torchmetrics calls

    def _make_wrap(self, note: Function, original: Function) -> Function:
        """Patch what wraps a metric's functions when it is created or unpickled; keep no reference to the metric."""

        def wrap(metric: Any, bare: Function) -> Function:
            function, metric_of = original(metric, bare), weakref.ref(metric)

            @wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                return self._call(function, metric_of, note, arguments, keywords)

            return call

        return wrap

    def _call(self, function: Function, metric_of: Function, note: Function, arguments: Any, keywords: Any) -> Any:
        if self._is_ignored:
            return function(*arguments, **keywords)
        self._inside.forward = True
        try:
            result = function(*arguments, **keywords)
        finally:
            self._inside.forward = False
        self._agent.attempt(note, metric_of(), result, arguments, keywords)
        return result

    @property
    def _is_ignored(self) -> bool:
        if getattr(self._inside, "forward", False):
            return True
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        return bool(compiler is not None and getattr(compiler, "is_compiling", bool)())

    def _make_forward(self, original: Function) -> Function:
        def forward(metric: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._call(partial(original, metric), lambda: metric, self._note_update, arguments, keywords)

        return forward

    def _make_reset(self, original: Function) -> Function:
        def reset(metric: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self._is_ignored and id(metric) in self._records:
                self._agent.attempt(self._end, self._records[id(metric)])
            return original(metric, *arguments, **keywords)

        return reset

    # What is recorded

    def _note_update(self, metric: Any, _result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        values = [value for value in [*arguments, *keywords.values()] if hasattr(value, "detach")]
        pred = keywords.get("preds", values[0] if values else None)
        truth = keywords.get("target", values[1] if len(values) > 1 else None)
        if pred is None or not is_plain(pred) or _is_capturing(pred):
            return
        record = self._record(metric)
        record.updates += 1
        record.pending.append((_snapshot(pred), None if truth is None else _snapshot(truth)))
        record.pending_bytes += pred.numel() * pred.element_size()
        on_device = pred.device.type != "cpu"
        if not on_device or len(record.pending) >= MAX_PENDING or record.pending_bytes >= MAX_PENDING_BYTES:
            self._flush(record)

    def _flush(self, record: MetricRecord) -> None:
        """Read the pending batches, and add them to the tally."""
        pending, record.pending, record.pending_bytes = record.pending, [], 0
        for pred, truth in pending:
            sides = aligned(pred, truth)
            if record.tally is None or not record.tally.fits(*sides):
                self._write(record)
                record.tally = predictions_of(self._agent).tally(record.name, hint=record.task)
            record.tally.add(*sides, {})
            record.is_written = False

    def _note_compute(self, metric: Any, result: Any, _arguments: Any, _keywords: Any) -> None:
        record = self._record(metric)
        self._flush(record)
        if record.updates == metric._update_count:
            self._write(record)
        else:  # another metric of its collection was updated instead
            record.tally = None
        values = described(record.name.partition("#")[0], result)
        self._agent.journal.write("evaluate", {"name": record.name, "values": values})

    def _write(self, record: MetricRecord) -> None:
        if record.tally is not None and not record.is_written:
            record.is_written = True
            predictions_of(self._agent).write(record.name, record.tally)

    def _end(self, record: MetricRecord) -> None:
        """Write the results of a metric that is reset or deleted."""
        self._flush(record)
        self._write(record)
        record.tally, record.updates = None, 0


def _is_capturing(tensor: Any) -> bool:
    """Return whether a CUDA graph is being recorded, which must not contain the agent's copies."""
    return tensor.device.type == "cuda" and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def _snapshot(tensor: Any) -> Any:
    """Return the tensor's current value; on a GPU a copy there."""
    return tensor.detach().clone() if tensor.device.type != "cpu" else tensor.detach()


def _task(metric: Any) -> str | None:
    """Return the task, by the package of torchmetrics that defines the metric; None for other packages."""
    for owner in type(metric).__mro__:
        parts = owner.__module__.split(".")
        if parts[0] == "torchmetrics" and len(parts) > 1 and parts[1] in ("classification", "regression"):
            return parts[1]
    return None
