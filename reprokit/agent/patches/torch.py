"""PyTorch's own switches: deterministic algorithms, cuDNN's choice of algorithms, the numbers of threads.

A switch stays as the patch set it: many scripts and libraries change it, as Lightning or `cudnn.benchmark = True`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys

from ..core.thread_names import on_thread
from ..pytorch import private_api
from . import PatchContext, PatchRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.patching import Function

# Arguments for workers only; without workers DataLoader rejects some of them.
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context", "in_order")
_WORKER = "torch.utils.data._utils.worker"  # its loop gives each worker one thread, in every run


def torch_deterministic(torch: Any, value: str, context: PatchContext, *, fill: bool = False) -> None:
    """Choose deterministic algorithms, with warnings where there is none; fill: set uninitialized memory to NaN.

    This does what use_deterministic_algorithms does, without importing Inductor's settings, which takes a second.
    """
    filling = getattr(torch.utils, "deterministic", None)
    if fill and filling is None:
        raise PatchRefused(
            "this PyTorch does not fill uninitialized memory (2.2 was the first); use torch-deterministic"
        )
    try:
        private_api.set_deterministic_mode(torch, True, warn_only=True)
    except TypeError:
        raise PatchRefused(
            "this PyTorch raises where an operator has no deterministic algorithm (1.11 warns)"
        ) from None
    if filling is not None:
        filling.fill_uninitialized_memory = fill
    context.on_undo(lambda: private_api.set_deterministic_mode(torch, False, warn_only=False))
    _set_mkldnn(torch, True)
    context.on_undo(lambda: _set_mkldnn(torch, False))
    context.swap(torch, "use_deterministic_algorithms", _hold_algorithms)
    context.swap(torch, "set_deterministic_debug_mode", _hold_debug_mode)


torch_deterministic_fill = functools.partial(torch_deterministic, fill=True)


def torch_deterministic_inductor(module: Any, value: str, context: PatchContext) -> None:
    """Make Inductor's choices deterministic too, if it has a switch for that."""
    if not hasattr(module, "deterministic"):
        context("this Inductor has no switch of its own (2.10 was the first)")
        return
    module.deterministic = True
    context.on_undo(lambda: setattr(module, "deterministic", False))


def _hold_algorithms(original: Function) -> Function:
    """Return a function that turns on warnings instead of off; turned on without warn_only, it raises errors."""

    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        original(True, warn_only=bool(warn_only or not mode))

    return use_deterministic_algorithms


def _hold_debug_mode(original: Function) -> Function:
    def set_deterministic_debug_mode(debug_mode: int | str) -> None:
        original("warn" if debug_mode in (0, "default") else debug_mode)

    return set_deterministic_debug_mode


def _set_mkldnn(torch: Any, deterministic: bool) -> None:
    """Set oneDNN's own switch, which PyTorch's deterministic mode does not change."""
    mkldnn = torch.backends.mkldnn
    if hasattr(mkldnn, "deterministic"):
        mkldnn.deterministic = deterministic


def torch_cudnn(module: Any, value: str, context: PatchContext) -> None:
    """Let cuDNN choose algorithms without benchmarks, and deterministic ones only."""
    if not module.backends.cudnn.is_available():
        context("this build of PyTorch has no cuDNN: there was nothing to choose")
    _pin(module, "benchmark", False, context)
    _pin(module, "deterministic", True, context)


def _pin(torch: Any, name: str, value: bool, context: PatchContext) -> None:
    """Set one of cuDNN's switches, and ignore later changes by the script."""
    setting = vars(type(torch.backends.cudnn))[name]
    previous = setting.getter()
    setting.setter(value)

    def hold(original: Function) -> Function:
        return lambda _: original(value)

    context.on_undo(lambda: setting.setter(previous))
    # cudnn.benchmark = True uses the first setter, cudnn.flags() the second
    context.swap(setting, "setter", hold)
    context.swap(*private_api.cudnn_setter(torch, name), hold)


def torch_threads(module: Any, value: str, context: PatchContext) -> None:
    """Fix the number of threads, whatever the script sets."""
    count, previous = int(value), module.get_num_threads()
    module.set_num_threads(count)
    _set_interop(module, count, context)
    context.on_undo(lambda: module.set_num_threads(previous))
    context.swap(module, "set_num_threads", functools.partial(_hold_count, count))
    context.swap(module, "set_num_interop_threads", _ignore_count)


def _set_interop(torch: Any, count: int, context: PatchContext) -> None:
    try:
        if torch.get_num_interop_threads() != count:
            torch.set_num_interop_threads(count)
    except RuntimeError as error:  # too late: the threads have started
        context(f"the threads between operators stay {torch.get_num_interop_threads()}: {error}")


def _hold_count(count: int, original: Function) -> Function:
    def set_num_threads(num_threads: int) -> None:
        in_worker = num_threads == 1 and sys._getframe(1).f_globals.get("__name__") == _WORKER
        original(1 if in_worker else count)

    return set_num_threads


def _ignore_count(original: Function) -> Function:
    def set_num_interop_threads(num_interop_threads: int) -> None:
        """Do nothing: PyTorch allows one call, which the patch has made."""

    return set_num_interop_threads


# Loaders


def torch_loader(module: Any, value: str, context: PatchContext) -> None:
    """Give each DataLoader its own generator and, if there is a value, that number of workers."""
    workers, seeds = int(value) if value else None, LoaderSeeds(module.torch)
    context.swap(module.DataLoader, "__init__", lambda original: _make_init(original, workers, seeds))


class LoaderSeeds:
    """Derives the seeds of loaders' generators from torch.manual_seed and the number of earlier loaders."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._counts: dict[str, int] = {}

    def generator(self) -> Any:
        """Return a new generator with the next seed."""
        name = on_thread("loader")
        self._counts[name] = number = self._counts.get(name, 0) + 1
        text = f"{self._torch.initial_seed()} {name} {number}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        return self._torch.Generator().manual_seed(seed)


def _make_init(original: Function, workers: int | None, seeds: LoaderSeeds) -> Function:
    signature = inspect.signature(original)

    def initialize(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **keywords)
        except TypeError:
            original(self, *arguments, **keywords)  # raises the TypeError itself
        else:
            _change(bound.arguments, workers, seeds)
            original(*bound.args, **bound.kwargs)

    return initialize


def _change(arguments: dict[str, Any], workers: int | None, seeds: LoaderSeeds) -> None:
    if arguments.get("generator") is None:
        arguments["generator"] = seeds.generator()
    arguments.pop("in_order", None)  # the default is True
    if workers is None:
        return
    arguments["num_workers"] = workers
    for name in _OF_WORKERS if workers == 0 else ():
        arguments.pop(name, None)
