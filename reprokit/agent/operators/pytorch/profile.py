"""Profiles PyTorch's operators: in some steps, on every computing thread.

The first steps are observed, later one in ONE_IN; all of them if calls are repeated (--confirm).
"""

from __future__ import annotations

import sys

from ...core import trail_library
from ...core.patching import Function, replace
from ...pytorch import private_api
from ...pytorch.compiled_graphs import COMPILED, CompiledGraph, GraphEvents
from ...pytorch.operators import MAX_LISTED, PytorchOperatorEvents
from ...pytorch.places import Places
from ..files import CallRecord
from ..profile import OperatorProfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ...pytorch.operators import PytorchCalled
    from .. import Observer

WHOLE = 3  # first steps, which are always observed
MAX_WHOLE = 100  # limit of observed first steps, while each has new calls
ONE_IN = 33  # of the later steps one in so many is observed
WHOLE_PASSES, ONE_PASS_IN = 4, 8  # the same for passes through loaders
MAX_CALLS = 20_000  # noted calls of one step; an evaluation can be very long
MAX_RECORDS = 4000
MAX_VARIANTS = 8  # of an operator at one place; further shapes are counted together


def observe(torch: Any, observer: Observer) -> None:
    """Begin to observe PyTorch, which was just imported."""
    if not private_api.sees_operators(torch):
        observer.note(f"operators of PyTorch {torch.__version__} are not observed: it must be 2.0 or newer")
        return
    observer.parts["torch"] = operators = PytorchProfile(observer, torch)
    operators.begin()
    if "torch.utils.data.dataloader" in sys.modules:
        operators.observe_loaders()


def observe_loaders(_module: ModuleType, observer: Observer) -> None:
    """Observe PyTorch's loaders, whose module was just imported."""
    if "torch" in observer.parts:
        observer.parts["torch"].observe_loaders()


def observe_graphs(module: ModuleType, observer: Observer) -> None:
    """Observe compiled graphs, which this module of Inductor may define."""
    if "torch" in observer.parts:
        observer.parts["torch"].graphs.watch(module)


class PytorchProfile:
    """Decides which steps of this process are profiled."""

    def __init__(self, observer: Observer, torch: Any) -> None:
        self._observer = observer
        self._torch = torch
        compiled = private_api.compiled(torch, trail_library.path_of(observer.agent.run) or "")

        def make_places() -> Places:
            return Places(torch, compiled)

        self._calls = DistinctCalls(observer, torch)
        self._listener = OperatorProfile(observer, self._find)
        self._events = PytorchOperatorEvents(torch, self._listener, make_places)
        self.graphs = GraphEvents(torch, observer.agent, self._listener, make_places, lambda: observer.collecting)
        if observer.confirm > 0:
            from ..confirm import Confirmer
            from .repeats import PytorchRepeats

            self._listener.confirmer = Confirmer(observer, PytorchRepeats(observer, torch, self._events.modes))
        self._has_given_up = False
        self._steps = self._noted_steps = self._armed = self._passes = 0

    def _find(self, call: PytorchCalled) -> CallRecord | None:
        record = self._calls.find(call)
        if self._calls.count >= MAX_CALLS:
            self._events.watching = False
        return record

    # On and off

    def begin(self) -> None:
        """Begin to observe."""
        observer = self._observer
        observer.callbacks.each_step.append(self.end_step)
        observer.callbacks.before_writing.append(self._write_sampling)
        observer.callbacks.at_end.append(self.finish)
        observer.callbacks.in_child.append(self._begin_in_child)
        self._events.modes.follow_threads()
        if not self._events.modes.can_compile:
            replace(self._torch, "compile", self._before_compiling)
        self._events.watch(True)

    def _before_compiling(self, original: Function) -> Function:
        """Patch torch.compile to end the observation: before 2.10 nothing is compiled while a mode is active."""

        def compile_and_leave(*arguments: Any, **keywords: Any) -> Any:
            self._observer.note("after torch.compile, operators are observed in PyTorch 2.10 and newer only")
            self._has_given_up = True
            self._observer.agent.attempt(self.finish)
            return original(*arguments, **keywords)

        return compile_and_leave

    def _begin_in_child(self) -> None:
        self._listener.confirmer = None  # the thread pool does not survive a fork
        self._calls.forget()
        self.graphs.forget()
        self._steps = self._noted_steps = self._armed = self._passes = 0
        self._events.watch(True)
        self._events.watching = self._may_watch()

    def end_step(self) -> None:
        """Handle the end of a step: decide whether to observe the next one."""
        self._steps += 1
        self._noted_steps += self._events.watching
        self._armed -= 1
        is_next_observed = self._may_watch() and self._is_next_observed()
        self._calls.count = 0
        self._calls.has_new = False
        mode = self._events.modes.mode
        if mode is not None:
            mode.places.forget()
        self._events.watch(is_next_observed)

    def _may_watch(self) -> bool:
        return self._observer.collecting and not self._has_given_up

    def _is_next_observed(self) -> bool:
        if self._steps < WHOLE or self._armed > 0 or self._steps % ONE_IN == 0 or self._listener.confirmer is not None:
            return True
        return self._calls.has_new and self._steps < MAX_WHOLE

    def finish(self) -> None:
        """Stop observing."""
        self._events.watch(False)
        if self._listener.confirmer is not None:
            self._listener.confirmer.finish()

    def _write_sampling(self) -> None:
        if self._calls.has_any:
            sampling = {"framework": "pytorch", "steps": self._steps, "observed": self._noted_steps}
            self._observer.write("sampling", "pytorch", sampling)

    # Loaders

    def observe_loaders(self) -> None:
        """Observe the first steps of each pass through a loader, and the fetches of its workers as steps."""
        self._observer.callbacks.each_pass.append(self._begin_pass)
        for fetcher in private_api.loader_fetchers():
            replace(fetcher, "fetch", self._make_fetch)

    def _begin_pass(self, _loader: Any) -> None:
        self._passes += 1
        if self._may_watch() and (self._passes <= WHOLE_PASSES or self._passes % ONE_PASS_IN == 0):
            self._armed, self._calls.count = 2, 0
            self._events.watch(True)

    def _make_fetch(self, original: Function) -> Function:
        information = self._torch.utils.data.get_worker_info

        def fetch(fetcher: Any, index: Any) -> Any:
            if information() is not None:
                self._observer.agent.attempt(self.end_step)
                self._observer.check_clock()
            elif not self._events.watching:
                self._observer.agent.attempt(self._events.modes.leave)
            return original(fetcher, index)

        return fetch


class DistinctCalls:
    """The records of this process, one for each distinct call."""

    def __init__(self, observer: Observer, torch: Any) -> None:
        self._observer = observer
        self._torch = torch
        self._signatures = Signatures(torch)
        self.has_new = True  # since the begin of the step
        self.forget()

    def forget(self) -> None:
        """Start afresh, also in a forked child."""
        self._records: dict[tuple[Any, ...], CallRecord] = {}
        self._variants: dict[tuple[Any, ...], int] = {}
        self.count = 0  # calls of the step

    @property
    def has_any(self) -> bool:
        """Whether anything was called."""
        return bool(self._records)

    def find(self, call: PytorchCalled) -> CallRecord | None:
        """Return the record of a call, created on first use; None if the call is not counted."""
        if type(call.operator) is CompiledGraph:
            key: tuple[Any, ...] = (COMPILED, call.operator)
            return self._records.get(key) or self._new_graph(key, call)
        self.count += 1
        place = call.where[0] if call.where else None
        key = (call.function, call.phase, place, self._signatures.of(call.inputs, call.keywords))
        return self._records.get(key) or self._new(key, call)

    def _new(self, key: tuple[Any, ...], call: PytorchCalled) -> CallRecord | None:
        signature = key[3]
        if signature[0] is not None and str(signature[0]).startswith("meta"):
            return None  # a tensor without data
        group = key[:3]
        self._variants[group] = variants = self._variants.get(group, 0) + 1
        if variants > MAX_VARIANTS:
            return self._records.get(group)
        if len(self._records) >= MAX_RECORDS:
            self._observer.note(f"of PyTorch's operators, calls beyond {MAX_RECORDS} distinct ones are not counted")
            return None
        attributes = call.operator.attributes(call.inputs, call.keywords)
        record = CallRecord(call.operator, self._line(call, described(signature), attributes), key)
        self._records[key] = self._records[group] = record
        self.has_new = True
        return record

    def _new_graph(self, key: tuple[Any, ...], call: PytorchCalled) -> CallRecord:
        tensors = [value for value in call.inputs if isinstance(value, self._torch.Tensor)]
        described_tensors: dict[str, object] = {
            "device": call.operator.devices[0],
            "dtypes": sorted({str(tensor.dtype).partition("torch.")[2] for tensor in tensors}),
            "shapes": [list(tensor.shape) for tensor in tensors[:MAX_LISTED]],
        }
        line = self._line(call, described_tensors, {})
        line.update(function=call.where[0][2] if call.where else "", operators=call.operator.operators)
        record = self._records[key] = CallRecord(call.operator, line, key, "compiled")
        return record

    def _line(self, call: PytorchCalled, tensors: dict[str, object], attributes: dict[str, object]) -> dict[str, Any]:
        return {
            "framework": "pytorch",
            "version": str(self._torch.__version__),
            "name": call.operator.name,
            "overload": call.operator.overload,
            "phase": call.phase,
            **tensors,
            "attributes": attributes,
            "calls": 0,
            "where": call.where,
        }


class Signatures:
    """Distinguishes calls: by devices, dtypes and shapes of tensors, and by other arguments than numbers.

    Numbers are ignored: a learning rate or the start of a slice changes in each step.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._types = frozenset([bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device])
        self._cpu = torch.device("cpu")

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return device, dtypes, shapes, and other arguments of a call."""
        dtypes: list[Any] = []
        shapes: list[Any] = []
        others: list[Any] = []
        device = self._cpu
        tensor, other_types = self._tensor, self._types
        values: list[Any] = []
        for value in (*args, *kwargs.values()):
            if type(value) is list or type(value) is tuple:
                values += [item for item in value if isinstance(item, tensor)]
            else:
                values.append(value)
        for value in values:
            if isinstance(value, tensor):
                dtypes.append(value.dtype)
                shapes.append(value.shape if not value.is_nested else ())
                if not value.is_cpu:
                    device = value.device
            elif type(value) in other_types:
                others.append(value)
        if not dtypes:
            device = kwargs.get("device") or device
        return device, tuple(dtypes), tuple(shapes), tuple(others)


def described(signature: tuple[Any, ...]) -> dict[str, object]:
    """Return the fields of a line that describe the tensors of a call."""
    device, dtypes, shapes, _ = signature
    return {
        "device": str(getattr(device, "type", device)).partition(":")[0],
        "dtypes": [str(dtype).partition("torch.")[2] for dtype in dtypes[:MAX_LISTED]],
        "shapes": [list(shape) for shape in shapes[:MAX_LISTED]],
    }
