"""Patches of Python and of smaller libraries, and seeds set from outside as each module is imported."""

from __future__ import annotations

import sys
from functools import partial
from hashlib import shake_256

from ..core.thread_names import on_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from . import PatchContext

LINEAR, VARYING, REPEATING = "gblinear", "shotgun", "coord_descent"


def seed(module: Any, value: str, context: PatchContext) -> None:
    """Seed the global generators as a script could, and the entropy of NumPy generators created without a seed."""
    number = int(value)
    sequences = sys.modules.get("numpy.random.bit_generator")
    if module.__name__ == "numpy.random" and sequences is not None:  # NumPy 1.17 and later
        context.swap(sequences, "randbits", partial(_make_randbits, value))
    if module.__name__ == "torch":
        module.manual_seed(number)  # also seeds GPUs once they are used
    elif module.__name__ != "tensorflow":
        module.seed(number)
    elif str(getattr(module, "__version__", "2")).startswith("1."):
        module.compat.v1.set_random_seed(number)  # of the default graph
    else:
        module.random.set_seed(number)


def _make_randbits(value: str, original: Callable[[int], int]) -> Callable[[int], int]:
    """Return a randbits that derives its bits from the seed, per process and thread, as their order varies."""
    counts: dict[str, int] = {}

    def randbits(k: int) -> int:
        process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
        key = f"{value} {getattr(process, '_identity', ())} {on_thread('')}"
        counts[key] = number = counts.get(key, -1) + 1
        digest = shake_256(f"{key} {number}".encode()).digest((k + 7) // 8)
        return int.from_bytes(digest, "big") >> -k % 8

    return randbits


def imap_ordered(module: Any, value: str, context: PatchContext) -> None:
    """Make Pool.imap_unordered behave as Pool.imap, for processes and threads."""
    context.swap(module.Pool, "imap_unordered", _make_imap)


def _make_imap(original: Callable[..., Any]) -> Callable[..., Any]:
    def imap_unordered(self: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> Any:
        return self.imap(func, iterable, chunksize)

    return imap_unordered


def xgboost_linear(module: Any, value: str, context: PatchContext) -> None:
    """Let gblinear use coord_descent instead of shotgun, which changes weights from several threads without a lock.

    Another updater that the script sets is left alone.
    """
    context.swap(module.Booster, "set_param", _make_set_param)


def _make_set_param(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_param(self: Any, params: Any, value: Any = None) -> None:
        named = {params: value} if isinstance(params, str) else dict(params)
        original(self, named)
        updater = named.get("updater")
        if updater == VARYING or (named.get("booster") == LINEAR and updater is None):
            original(self, "updater", REPEATING)

    return set_param
