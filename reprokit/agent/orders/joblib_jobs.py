"""Orders of joblib's Parallel(return_as="generator_unordered"): in which order batches of tasks were done."""

from __future__ import annotations

from collections import deque

from ..core.patching import replace
from .callers import caller_outside
from .tracks import Orders
from .turns import ReorderBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


NUMBER = "_reprokit_number"  # attribute of a batch of tasks


class OrderedJobs(deque):  # type: ignore[type-arg]
    """The completed batches of one call, in the order in which joblib gets them."""

    def __init__(self, buffer: ReorderBuffer, parallel: Any) -> None:
        super().__init__()
        self._buffer, self._parallel = buffer, parallel
        self.submitted = 0  # number of batches

    def append(self, job: Any) -> None:
        """Take a completed batch; after a failure flush, as joblib looks for the failed batch here."""
        self._buffer.put(getattr(job, NUMBER, 0), job, self._pass_on)
        if self._parallel._aborting:
            self._buffer.flush(self._pass_on)

    def _pass_on(self, number: int, job: Any) -> None:
        super().append(job)

    def __len__(self) -> int:
        """Return how many batches can be taken; joblib polls this while it waits."""
        if not super().__len__():
            self._buffer.flush_overdue(self._pass_on)
        return super().__len__()


class JobOrders:
    """Records or replays the order in which batches of tasks complete."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Patch joblib.parallel."""
        replace(module.Parallel, "_register_new_job", self._make_register)

    def _make_register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(parallel: Any, job: Any) -> Any:
            if not parallel.return_ordered:
                if type(parallel._jobs) is deque:
                    jobs = self._orders.attempt(self._ordered_jobs, parallel)
                    parallel._jobs = parallel._jobs if jobs is None else jobs
                if type(parallel._jobs) is OrderedJobs:
                    setattr(job, NUMBER, parallel._jobs.submitted)
                    parallel._jobs.submitted += 1
            return original(parallel, job)

        return register

    def _ordered_jobs(self, parallel: Any) -> OrderedJobs | None:
        caller = caller_outside(("joblib",))
        choices = None if caller is None else self._orders.choices("Parallel", caller, numbered=True)
        return None if choices is None else OrderedJobs(ReorderBuffer(self._orders, choices), parallel)
