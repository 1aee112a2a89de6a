"""Orders of joblib's Parallel(return_as="generator_unordered"): in which order batches of tasks were done."""

from __future__ import annotations

from collections import deque

from ..core.patching import replace
from .tracks import Orders, caller_outside
from .turns import HeldBack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


NUMBER = "_reprokit_number"  # attribute of a batch of tasks


class JobsInOrder(deque):  # type: ignore[type-arg]
    """The batches that are done, in the order in which they are given on."""

    def __init__(self, held: HeldBack, parallel: Any) -> None:
        super().__init__()
        self._held, self._parallel = held, parallel
        self.made = 0  # batches

    def append(self, job: Any) -> None:
        """Take a batch that is done; where one has failed, joblib looks for it among those that are there."""
        self._held.come(getattr(job, NUMBER, 0), job, self._give)
        if self._parallel._aborting:
            self._held.give_all(self._give)

    def _give(self, number: int, job: Any) -> None:
        super().append(job)

    def __len__(self) -> int:
        """Return how many can be had; joblib asks again and again while it waits."""
        if not super().__len__():
            self._held.look(self._give)
        return super().__len__()


class JobOrders:
    """Records in which order batches of tasks are done, or gives it again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Watch joblib.parallel."""
        replace(module.Parallel, "_register_new_job", self._make_register)

    def _make_register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(parallel: Any, job: Any) -> Any:
            if not parallel.return_ordered:
                if type(parallel._jobs) is deque:
                    jobs = self._orders.attempt(self._of_call, parallel)
                    parallel._jobs = parallel._jobs if jobs is None else jobs
                if type(parallel._jobs) is JobsInOrder:
                    setattr(job, NUMBER, parallel._jobs.made)
                    parallel._jobs.made += 1
            return original(parallel, job)

        return register

    def _of_call(self, parallel: Any) -> JobsInOrder | None:
        caller = caller_outside(("joblib",))
        choices = None if caller is None else self._orders.choices("Parallel", caller, numbered=True)
        return None if choices is None else JobsInOrder(HeldBack(self._orders, choices), parallel)
