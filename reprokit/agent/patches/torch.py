"""PyTorch's own switches: deterministic algorithms, cuDNN's choice of algorithms, the numbers of threads.

A switch that is set stays set: many scripts and libraries set it again, as Lightning does, or `cudnn.benchmark = True`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys

from ..core.thread_names import on_thread
from ..pytorch import private_api
from . import PatchUnfit, Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.patching import Function

# What only workers take; without any, DataLoader refuses some of it.
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context", "in_order")
_WORKER = "torch.utils.data._utils.worker"  # its loop gives each worker one thread, in every run


def torch_deterministic(torch: Any, value: str, tell: Tell, *, fill: bool = False) -> None:
    """Choose deterministic algorithms, warn where there is none, and fill uninitialized memory with NaN or leave it.

    As use_deterministic_algorithms does, but without the second that it takes to import Inductor's settings.
    """
    filling = getattr(torch.utils, "deterministic", None)
    if fill and filling is None:
        raise PatchUnfit("this PyTorch does not fill uninitialized memory (2.2 was the first); use torch-deterministic")
    try:
        private_api.set_deterministic_mode(torch, True, warn_only=True)
    except TypeError:
        raise PatchUnfit("this PyTorch raises where an operator has no deterministic algorithm (1.11 warns)") from None
    if filling is not None:
        filling.fill_uninitialized_memory = fill
    tell.undo_by(lambda: private_api.set_deterministic_mode(torch, False, warn_only=False))
    _set_mkldnn(torch, True)
    tell.undo_by(lambda: _set_mkldnn(torch, False))
    tell.swap(torch, "use_deterministic_algorithms", _hold_algorithms)
    tell.swap(torch, "set_deterministic_debug_mode", _hold_debug_mode)


torch_deterministic_fill = functools.partial(torch_deterministic, fill=True)


def torch_deterministic_inductor(module: Any, value: str, tell: Tell) -> None:
    """Make Inductor choose by rule too, where it has a switch for that."""
    if not hasattr(module, "deterministic"):
        tell("this Inductor has no switch of its own (2.10 was the first)")
        return
    module.deterministic = True
    tell.undo_by(lambda: setattr(module, "deterministic", False))


def _hold_algorithms(original: Function) -> Function:
    """Turned off is turned to warnings; who turns it on without warn_only gets errors, as asked for."""

    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        original(True, warn_only=bool(warn_only or not mode))

    return use_deterministic_algorithms


def _hold_debug_mode(original: Function) -> Function:
    def set_deterministic_debug_mode(debug_mode: int | str) -> None:
        original("warn" if debug_mode in (0, "default") else debug_mode)

    return set_deterministic_debug_mode


def _set_mkldnn(torch: Any, wanted: bool) -> None:
    """oneDNN has a switch of its own, which the other leaves alone."""
    mkldnn = torch.backends.mkldnn
    if hasattr(mkldnn, "deterministic"):
        mkldnn.deterministic = wanted


def torch_cudnn(module: Any, value: str, tell: Tell) -> None:
    """Let cuDNN choose by rule and not by timing, and among deterministic algorithms only."""
    if not module.backends.cudnn.is_available():
        tell("this build of PyTorch has no cuDNN: there was nothing to choose")
    _pin(module, "benchmark", False, tell)
    _pin(module, "deterministic", True, tell)


def _pin(torch: Any, name: str, wanted: bool, tell: Tell) -> None:
    """Set one of cuDNN's switches, and keep what a script sets later from changing it."""
    setting = vars(type(torch.backends.cudnn))[name]
    before = setting.getter()
    setting.setter(wanted)

    def hold(original: Function) -> Function:
        return lambda _: original(wanted)

    tell.undo_by(lambda: setting.setter(before))
    # cudnn.benchmark = True goes by the one, cudnn.flags() by the other
    tell.swap(setting, "setter", hold)
    tell.swap(*private_api.cudnn_setter(torch, name), hold)


def torch_threads(module: Any, value: str, tell: Tell) -> None:
    """Compute on this many threads, whatever the script sets."""
    count, before = int(value), module.get_num_threads()
    module.set_num_threads(count)
    _set_interop(module, count, tell)
    tell.undo_by(lambda: module.set_num_threads(before))
    tell.swap(module, "set_num_threads", functools.partial(_hold_count, count))
    tell.swap(module, "set_num_interop_threads", _ignore_count)


def _set_interop(torch: Any, count: int, tell: Tell) -> None:
    try:
        if torch.get_num_interop_threads() != count:
            torch.set_num_interop_threads(count)
    except RuntimeError as error:  # too late: they have begun
        tell(f"the threads between operators stay {torch.get_num_interop_threads()}: {error}")


def _hold_count(count: int, original: Function) -> Function:
    def set_num_threads(wanted: int) -> None:
        in_worker = wanted == 1 and sys._getframe(1).f_globals.get("__name__") == _WORKER
        original(1 if in_worker else count)

    return set_num_threads


def _ignore_count(original: Function) -> Function:
    def set_num_interop_threads(wanted: int) -> None:
        """PyTorch allows one call, which was ours."""

    return set_num_interop_threads


# Loaders


def torch_loader(module: Any, value: str, tell: Tell) -> None:
    """Give each DataLoader its own generator and, where the value says so, that many workers."""
    workers, seeds = int(value) if value else None, Seeds(module.torch)
    tell.swap(module.DataLoader, "__init__", lambda original: _make_init(original, workers, seeds))


class Seeds:
    """Seeds for generators: of the same torch.manual_seed and the same number of loaders before, the same one."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._counts: dict[str, int] = {}

    def generator(self) -> Any:
        """Return a new generator."""
        name = on_thread("loader")
        self._counts[name] = number = self._counts.get(name, 0) + 1
        text = f"{self._torch.initial_seed()} {name} {number}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        return self._torch.Generator().manual_seed(seed)


def _make_init(original: Function, workers: int | None, seeds: Seeds) -> Function:
    signature = inspect.signature(original)

    def initialize(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **keywords)
        except TypeError:
            original(self, *arguments, **keywords)  # which says so itself
        else:
            _change(bound.arguments, workers, seeds)
            original(*bound.args, **bound.kwargs)

    return initialize


def _change(arguments: dict[str, Any], workers: int | None, seeds: Seeds) -> None:
    if arguments.get("generator") is None:
        arguments["generator"] = seeds.generator()
    arguments.pop("in_order", None)  # by default they come in order
    if workers is None:
        return
    arguments["num_workers"] = workers
    for name in _OF_WORKERS if workers == 0 else ():
        arguments.pop(name, None)
