"""Orders of joblib's Parallel(return_as="generator_unordered"): in which order batches of tasks were done.

Private names of joblib 1.4 to 1.6: Parallel._register_new_job, _jobs and _aborting.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from threading import RLock

from ..core.patching import replace
from .turns import Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .tracks import Orders
    from .turns import Choices

NUMBER = "_reprokit_number"  # attribute of a batch of tasks
_BETWEEN = ("joblib", __name__.partition(".")[0])


class JobsInOrder(deque):  # type: ignore[type-arg]
    """The batches that are done: noted as they come, or held back until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices, parallel: Any) -> None:
        super().__init__()
        self._orders, self._choices, self._parallel = orders, choices, parallel
        self._lock = RLock()
        self._count = 0  # of batches that were given on
        self._early: dict[int, Any] = {}
        self._wanted = -1
        self._since = time.monotonic()
        self._patience: Patience | None = None
        self.made = 0  # batches

    def append(self, job: Any) -> None:
        """Take a batch that is done: its number is noted by how far it is from the count of those before."""
        with self._lock:
            number = getattr(job, NUMBER, self._count)
            if not self._choices.is_replay:
                self._choices.note(str(number - self._count))
                self._count += 1
                super().append(job)
                return
            self._early[number] = job
            self._give()

    def _give(self) -> None:
        while self._early:
            if self._wanted < 0:
                text = self._choices.next()
                self._wanted = min(self._early) if text is None else self._count + int(text)
            if self._parallel._aborting or self._wanted not in self._early:
                break
            super().append(self._early.pop(self._wanted))
            self._count, self._wanted, self._patience = self._count + 1, -1, None
        if self._parallel._aborting:
            self._give_all()

    def _give_all(self) -> None:
        while self._early:
            super().append(self._early.popitem()[1])

    def __len__(self) -> int:
        """Return how many can be had; joblib asks again and again while it waits."""
        found = super().__len__()
        if self._early and not found:
            with self._lock:
                self._patience = self._patience or Patience(self._orders, self._since)
                if self._patience.is_over():
                    self._choices.give_up()
                    self._give_all()
        return found


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
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and str(caller.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
            caller = caller.f_back
        choices = None if caller is None else self._orders.choices("Parallel", caller, numbered=True)
        return None if choices is None else JobsInOrder(self._orders, choices, parallel)
