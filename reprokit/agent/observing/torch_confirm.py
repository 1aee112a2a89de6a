"""Executes each distinct call of an operator of PyTorch again on its own inputs, and compares results bit by bit.

The training's own call is made as it is; the repeats work on copies wherever the operator changes its inputs, and all
generators and the number of threads are put back.
"""

from __future__ import annotations

import time

from ..pytorch import private_api
from .torch_inputs import Copier, Digester, States, compared, size
from .torch_kept_calls import CapturedCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Observer
    from .torch_operators import CallRecord

    Once = Callable[[], bytes]

MAX_BYTES = 1 << 30  # of the inputs of one call that are copied
MAX_SECONDS = 300.0  # of all repeats of a process; the last half is for calls that can race
MAX_SECONDS_OF_ONE = 3.0  # for the repeats that were asked for
MAX_SECONDS_OF_RACING = 10.0  # likewise, of one that is known to race
FURTHER_SECONDS = (0.3, 3.0)  # how long one that could race, and one that is known to, is repeated further
FURTHER_TIMES = 10  # at most as many times the repeats that were asked for
WAKING = 1 << 17  # numbers on which all threads work
AGAIN = frozenset([2, 4, 8])  # of calls that can race, those with other contents that are repeated too
COMPILED = "torch.compile"
THREADS = (1, 2, 4)
FEW = 4  # repeats with another number of threads
# Operators that let threads or atomic additions meet at one place of memory, or that libraries differ in.
_CAN_RACE = (
    "index scatter gather put embedding bag bincount hist cum segment pool upsample interpolate grid pad fold ctc nll "
    "sparse coalesce unique median kthvalue sort repeat".split()
)
_RACING = ("::index_put", "::_index_put_impl", "::put", "::index_copy")  # seen to race on the CPU
_NEVER_AGAIN = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem", "_dtensor", "rpc")  # others take part
_SHARED = tuple("framework version name overload phase device dtypes shapes attributes operators where".split())
_OF_MEMORY = ("aten::_pin_memory", "aten::set_")


class TorchConfirmer:
    """Repeats the calls of this process."""

    def __init__(self, observer: Observer, torch: Any, quiet: Callable[[bool], None], make: Callable[..., Any]) -> None:
        self._observer = observer
        self._make = make
        self._quiet = quiet
        self._torch = torch
        self._digester = Digester(torch)
        self._spent = 0.0
        self._captured = CapturedCalls(observer.run, torch, observer.helper)

    # The training's call

    def call(self, record: CallRecord, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the training's call, and repeat it if it is to be."""
        if not self.is_due(record):
            return self._make(function, args, kwargs)
        begun = time.monotonic()
        repeats = self._guarded(self._prepare, record, function, args, kwargs)
        result = self._make(function, args, kwargs)
        if repeats is not None:
            self._guarded(self._repeat, record, repeats)
        self._spent += time.monotonic() - begun
        return result

    def _guarded(self, part: Callable[..., Any], record: CallRecord, *arguments: Any) -> Any:
        """Do a part of ours; what it raises is said of the call, and is not the training's."""
        torch = self._torch
        self._quiet(True)
        try:
            with torch.no_grad(), private_api.without_overrides(torch):
                return part(record, *arguments)
        except Exception as error:
            words = " ".join(str(error).split())
            self._line(record)["problem"] = f"executed again, it raised {type(error).__name__}: {words}"[:300]
            return None
        finally:
            self._quiet(False)

    def is_due(self, record: CallRecord) -> bool:
        """Whether this call is to be executed again."""
        if not self._observer.collecting:
            return False
        line = record.confirmed
        if line is None:
            return True
        calls = record.line["calls"]
        return calls in AGAIN and not line["problem"] and line["results"] == 1 and could_race(record.operator)

    def _prepare(
        self, record: CallRecord, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Repeats | None:
        """What is needed to make the call again; None where it must not be."""
        torch = self._torch
        line = self._line(record)
        line["problem"] = problem = self._why_not(record, args, kwargs)
        if problem:
            return None
        operator = record.operator
        changes = operator.changes or not operator.built_in
        if changes:
            args, kwargs = Copier(torch).copy((args, kwargs))

        def make(*args: Any, **kwargs: Any) -> Any:
            return self._make(function, args, kwargs)

        return Repeats(torch, self._digester, operator, make, args, kwargs, changes)

    def _line(self, record: CallRecord) -> dict[str, Any]:
        if record.confirmed is None:
            line = {name: record.line[name] for name in _SHARED if name in record.line}
            line.update(repeats=0, results=0, threads={}, capabilities={}, problem="")
            record.confirmed = line
            self._observer.write("confirmed", record.key, line)
        confirmed: dict[str, Any] = record.confirmed
        return confirmed

    def _why_not(self, record: CallRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        torch, operator = self._torch, record.operator
        namespace = operator.name.partition("::")[0]
        limit = MAX_SECONDS if could_race(operator) else MAX_SECONDS / 2
        if operator.is_uninitialised:
            return "its result is memory as it was found"
        if namespace in _NEVER_AGAIN or operator.name in _OF_MEMORY:
            return "it is not one to be executed again"
        if self._spent > limit:
            return f"no time was left: repeats had taken {limit:.0f} s"
        if size(torch, (args, kwargs)) > MAX_BYTES:
            return f"its inputs are larger than {MAX_BYTES >> 20} MiB"
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return "it was called while a CUDA graph was captured"
        return ""

    # The repeats

    def _repeat(self, record: CallRecord, repeats: Repeats) -> None:
        line = record.confirmed
        racing = could_race(record.operator)
        is_known = any(part in record.operator.name for part in _RACING) or not record.operator.built_in
        if racing and line["device"] == "cpu":
            repeats.before = self._waker()
        try:
            found, made = self._results(repeats.once, racing, is_known)
            line["repeats"] += made
            line["results"] = max(line["results"], len(found))
            if line["device"] == "cpu" and record.operator.name != COMPILED:  # whose code has the number in it
                self._try_threads(line, repeats.once, found, racing)
                if len(found) == 1:
                    self._captured.keep(record, repeats, min(found))
        finally:
            repeats.end()

    def _waker(self) -> Callable[[], object]:
        """What has all threads busy: those that sleep come too late to meet the first, on a busy machine above all."""
        torch = self._torch
        numbers = torch.ones(WAKING)
        result = torch.empty_like(numbers)
        return lambda: torch.neg(numbers, out=result)

    def _results(self, once: Once, racing: bool, is_known: bool) -> tuple[set[bytes], int]:
        """The distinct results, and of how many repeats."""
        wanted = self._observer.confirm
        limit = MAX_SECONDS_OF_RACING if is_known else MAX_SECONDS_OF_ONE
        further = FURTHER_SECONDS[is_known]
        begun = time.monotonic()
        found: set[bytes] = set()
        made = 0
        while made < wanted or (racing and len(found) == 1 and made < wanted * FURTHER_TIMES):
            found.add(once())
            made += 1
            took = time.monotonic() - begun
            if took > (limit if made < wanted else further) and made > 1:
                break
        return found, made

    def _try_threads(self, line: dict[str, Any], once: Once, found: set[bytes], racing: bool) -> None:
        torch = self._torch
        present, set_count = torch.get_num_threads(), private_api.set_thread_count(torch)
        repeats = max(FEW, self._observer.confirm // 3) if racing else FEW
        begun = time.monotonic()
        try:
            for number in THREADS:
                if number != present and time.monotonic() - begun < MAX_SECONDS_OF_ONE:
                    set_count(number)  # not the function that settings are read by
                    others = {once() for _ in range(repeats)}
                    line["threads"][str(number)] = _verdict(found, others, line["threads"].get(str(number)))
        finally:
            set_count(present)

    def finish(self) -> None:
        """Have other capabilities of the CPU tried, in processes of their own."""
        self._observer.agent.attempt(self._captured.compare)


class Repeats:
    """One call that can be made again and again."""

    def __init__(
        self,
        torch: Any,
        digester: Digester,
        operator: Any,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changes: bool,
    ) -> None:
        self._torch = torch
        self._digester = digester
        self._operator = operator
        self._function = function
        self.args, self.kwargs = args, kwargs
        self._changes = changes
        self.states = States(torch, (args, kwargs), not operator.built_in)
        self._after: States | None = None
        self.before: Callable[[], object] = _nothing

    def once(self) -> bytes:
        """Make the call, and digest what it gives."""
        if self._after is None:
            self._after = States(self._torch, (self.args, self.kwargs), not self._operator.built_in)
        self.states.restore()
        args, kwargs = self.args, self.kwargs
        if self._changes:
            args, kwargs = Copier(self._torch).copy((args, kwargs))
        self.before()
        result = self._function(*args, **kwargs)
        values = compared(self._torch, self._operator, result, args)
        return self._digester.of([values, args, kwargs] if self._changes else values)

    def end(self) -> None:
        """Put the generators back to where the training's call left them."""
        if self._after is not None:
            self._after.restore()


def _nothing() -> None:
    pass


def could_race(operator: Any) -> bool:
    """Whether threads may meet in it: such operators are known, or nothing is known of it."""
    return not operator.built_in or any(part in operator.name for part in _CAN_RACE)


def _verdict(found: set[bytes], others: set[bytes], before: str | None) -> str:
    """How results with another number of threads relate to those with the present one."""
    if len(others) > 1 or before == "varies":
        return "varies"
    if len(found) > 1:
        return "repeats"
    return "same" if others == found and before != "different" else "different"
