"""PyTorch's DataLoader: a generator for each, batches in order, and a number of workers that is the same everywhere."""

from __future__ import annotations

import hashlib
import inspect

from ..core.patching import swap
from ..core.thread_names import on_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Tell

    Function = Callable[..., Any]

# What only workers take; without any, DataLoader refuses some of it.
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context", "in_order")


def torch_loader(module: Any, value: str, tell: Tell) -> None:
    """Give each DataLoader its own generator and, where the value says so, that many workers."""
    workers, seeds = int(value) if value else None, Seeds(module.torch)
    tell.undo_by(swap(module.DataLoader, "__init__", lambda original: _make_init(original, workers, seeds)))


class Seeds:
    """Seeds for generators: of the same torch.manual_seed and the same number of loaders before, the same one."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._counts: dict[str, int] = {}

    def generator(self) -> Any:
        """A new generator."""
        name = on_thread("loader")
        self._counts[name] = number = self._counts.get(name, 0) + 1
        text = f"{self._torch.initial_seed()} {name} {number}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        return self._torch.Generator().manual_seed(seed)


def _make_init(original: Function, workers: int | None, seeds: Seeds) -> Function:
    signature = inspect.signature(original)

    def initialise(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **keywords)
        except TypeError:
            original(self, *arguments, **keywords)  # which says so itself
        else:
            _change(bound.arguments, workers, seeds)
            original(*bound.args, **bound.kwargs)

    return initialise


def _change(arguments: dict[str, Any], workers: int | None, seeds: Seeds) -> None:
    if arguments.get("generator") is None:
        arguments["generator"] = seeds.generator()
    arguments.pop("in_order", None)  # by default they come in order
    if workers is None:
        return
    arguments["num_workers"] = workers
    for name in _OF_WORKERS if workers == 0 else ():
        arguments.pop(name, None)
