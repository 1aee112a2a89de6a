"""Observes PyTorch's operators by a dispatch mode that is active in some steps, on every computing thread.

The first steps are observed, later one in ONE_IN; all of them if calls are repeated (--confirm).
"""

from __future__ import annotations

import sys

from ..core import trail_library
from ..core.patching import Function, replace
from ..core.signal_errors import pass_on
from ..pytorch import private_api
from ..pytorch.dispatch_modes import DispatchModes
from .torch_calls import Operator, Signatures, described, passed_on
from .torch_places import OURS, Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from . import Observer
    from .torch_confirm import TorchConfirmer

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
    observer.parts["torch"] = operators = TorchOperators(observer, torch)
    operators.begin()
    if "torch.utils.data.dataloader" in sys.modules:
        operators.observe_loaders()


def observe_loaders(_module: ModuleType, observer: Observer) -> None:
    """Observe PyTorch's loaders, whose module was just imported."""
    if "torch" in observer.parts:
        observer.parts["torch"].observe_loaders()


class CallRecord:
    """A distinct call of an operator."""

    __slots__ = ("key", "line", "operator")

    def __init__(self, operator: Operator, line: dict[str, Any], key: tuple[Any, ...]) -> None:
        self.operator = operator
        self.line = line
        self.key = key


class TorchOperators:
    """Observes the operators of this process."""

    def __init__(self, observer: Observer, torch: Any) -> None:
        self.observer = observer
        self.torch = torch
        self.signatures = Signatures(torch)
        self.watching = True
        self.confirmer: TorchConfirmer | None = None
        if observer.confirm > 0:
            from .torch_confirm import TorchConfirmer

            self.confirmer = TorchConfirmer(observer, torch, self.quiet, self.pass_on)
        compiled = private_api.compiled(torch, trail_library.path_of(observer.agent.run) or "")
        self._modes = DispatchModes(torch, self, lambda: Places(torch, compiled))
        self._operators: dict[Any, Operator] = {}
        self._has_given_up = False
        self._is_new = True  # whether the observed step had new calls
        self._reset()

    def _reset(self) -> None:
        self._records: dict[tuple[Any, ...], CallRecord] = {}
        self._variants: dict[tuple[Any, ...], int] = {}
        self._calls = self._steps = self._noted_steps = self._armed = self._passes = 0

    # On and off

    def begin(self) -> None:
        """Begin to observe."""
        observer = self.observer
        observer.callbacks.each_step.append(self.end_step)
        observer.callbacks.before_writing.append(self._write_sampling)
        observer.callbacks.at_end.append(self.finish)
        observer.callbacks.in_child.append(self._begin_in_child)
        self._modes.follow_threads()
        if not self._modes.can_compile:
            replace(self.torch, "compile", self._before_compiling)
        self._modes.enter()

    def _before_compiling(self, original: Function) -> Function:
        """Patch torch.compile to end the observation: before 2.10 nothing is compiled while a mode is active."""

        def compile_and_leave(*arguments: Any, **keywords: Any) -> Any:
            self.observer.note("after torch.compile, operators are observed in PyTorch 2.10 and newer only")
            self._has_given_up = True
            self.observer.agent.attempt(self.finish)
            return original(*arguments, **keywords)

        return compile_and_leave

    def _begin_in_child(self) -> None:
        self.confirmer = None  # the thread pool does not survive a fork
        self._reset()
        self.watching = self._may_watch()
        self._modes.enter()

    def quiet(self, is_quiet: bool) -> None:
        """Stop or resume noting calls on this thread."""
        mode = self._modes.mode
        if mode is not None:
            mode.is_quiet = is_quiet

    def end_step(self) -> None:
        """Handle the end of a step: decide whether to observe the next one."""
        self._steps += 1
        self._noted_steps += self.watching
        self._armed -= 1
        self.watching = self._may_watch() and self._is_next_observed()
        self._calls = 0
        self._is_new = False
        mode = self._modes.mode
        if mode is not None:
            mode.places.forget()
        if self.watching:
            self._modes.enter()
        else:
            self._modes.leave()

    def _may_watch(self) -> bool:
        return self.observer.collecting and not self._has_given_up

    def _is_next_observed(self) -> bool:
        if self._steps < WHOLE or self._armed > 0 or self._steps % ONE_IN == 0 or self.confirmer is not None:
            return True
        return self._is_new and self._steps < MAX_WHOLE

    def finish(self) -> None:
        """Stop observing."""
        self.watching = False
        self._modes.leave()
        if self.confirmer is not None:
            self.confirmer.finish()

    # Loaders

    def observe_loaders(self) -> None:
        """Observe the first steps of each pass through a loader, and the fetches of its workers as steps."""
        self.observer.callbacks.each_pass.append(self._begin_pass)
        for fetcher in private_api.loader_fetchers():
            replace(fetcher, "fetch", self._make_fetch)

    def _begin_pass(self, _loader: Any) -> None:
        self._passes += 1
        if self._may_watch() and (self._passes <= WHOLE_PASSES or self._passes % ONE_PASS_IN == 0):
            self._armed, self._calls, self.watching = 2, 0, True
            self._modes.enter()

    def _make_fetch(self, original: Function) -> Function:
        information = self.torch.utils.data.get_worker_info

        def fetch(fetcher: Any, index: Any) -> Any:
            if information() is not None:
                self.observer.agent.attempt(self.end_step)
                self.observer.check_clock()
            elif not self.watching:
                self.observer.agent.attempt(self._modes.leave)
            return original(fetcher, index)

        return fetch

    # Calls

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note a call, and execute it."""
        try:
            record = self._note(mode.places, function, args, kwargs)
        except Exception as error:
            self.observer.agent.warn(f"a call of {function} was not noted: {type(error).__name__}: {error}")
            record = None
            pass_on(error)
        if record is not None and self.confirmer is not None:
            return self.confirmer.call(record, function, args, kwargs)
        return self.pass_on(function, args, kwargs)

    def pass_on(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute a call unchanged."""
        return passed_on(self.torch, function, args, kwargs)

    def _note(self, places: Places, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallRecord | None:
        operator = self._operators.get(function)
        if operator is None:
            if private_api.schema(function) is None:
                return None  # a higher-order operator: its inner operators are observed
            operator = self._operators[function] = Operator(function)
        if operator.is_silent and not places.made_node():
            return None
        where, phase = places.of_call(3)
        if operator.is_silent or phase == OURS:
            return None
        self._calls += 1
        if self._calls >= MAX_CALLS:
            self.watching = False
        signature = self.signatures.of(args, kwargs)
        place = where[0] if where else None
        key = (function, phase, place, signature)
        record = self._records.get(key)
        if record is None:
            record = self._new_record(operator, key, where, args, kwargs)
            if record is None:
                return None
        record.line["calls"] += 1
        return record

    def _new_record(
        self, operator: Operator, key: tuple[Any, ...], where: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRecord | None:
        function, phase, place, signature = key
        if signature[0] is not None and str(signature[0]).startswith("meta"):
            return None  # a tensor without data
        group = (function, phase, place)
        self._variants[group] = variants = self._variants.get(group, 0) + 1
        if variants > MAX_VARIANTS:
            return self._records.get(group)
        if len(self._records) >= MAX_RECORDS:
            self.observer.note(f"of PyTorch's operators, calls beyond {MAX_RECORDS} distinct ones are not counted")
            return None
        line = {
            "framework": "pytorch",
            "version": str(self.torch.__version__),
            "name": operator.name,
            "overload": operator.overload,
            "phase": phase,
            **described(signature),
            "attributes": operator.attributes(args, kwargs),
            "calls": 0,
            "where": where,
        }
        record = self._records[key] = CallRecord(operator, line, key)
        self._records[group] = record
        self._is_new = True
        self.observer.write("operator", key, line)
        return record

    def _write_sampling(self) -> None:
        if self._records:
            sampling = {"framework": "pytorch", "steps": self._steps, "observed": self._noted_steps}
            self.observer.write("sampling", "pytorch", sampling)
