"""Orders of Ray: which tasks had completed when ray.wait returned."""

from __future__ import annotations

from ..core.patching import Function, replace
from .callers import caller_outside
from .futures import END
from .processes import wait_again
from .tracks import Orders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RayOrders:
    """Records or replays which tasks complete first."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, worker: Any) -> None:
        """Patch ray._private.worker, before other modules import its functions."""
        replace(worker, "wait", self._make_wait)

    def _make_wait(self, original: Function) -> Function:
        def is_done(objects: list[Any], timeout: float | None) -> list[Any]:
            done: list[Any] = original(objects, num_returns=1, timeout=timeout)[0]
            return done

        def wait(ray_waitables: Any, *, timeout: float | None = None, **keywords: Any) -> Any:
            caller = caller_outside(("ray",)) if isinstance(ray_waitables, list) else None
            choices = None if caller is None else self._orders.choices("ray.wait", caller)
            if choices is None:
                return original(ray_waitables, timeout=timeout, **keywords)
            tasks = list(ray_waitables)
            if choices.is_replay:
                ready = wait_again(is_done, tasks, timeout, choices)
                if ready is not None:
                    return ready, [task for task in tasks if task not in ready]
            ready, left = original(tasks, timeout=timeout, **keywords)
            if not choices.is_replay:
                for task in ready:
                    choices.note(str(tasks.index(task)))
                choices.note(END)
            return ready, left

        return wait
