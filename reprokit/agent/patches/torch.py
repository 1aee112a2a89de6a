"""PyTorch's own switches: deterministic algorithms, cuDNN's choice of algorithms, the numbers of threads.

A switch that is set stays set: many scripts and libraries set it again, as Lightning does, or `cudnn.benchmark = True`.
"""

from __future__ import annotations

import functools
import sys

from ..core.patching import all_of, swap
from ..pytorch import private_api
from . import PatchUnfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Tell

    Function = Callable[..., Any]

_WORKER = "torch.utils.data._utils.worker"  # its loop gives each worker one thread, in every run


def torch_deterministic(module: Any, value: str, tell: Tell) -> None:
    """Choose deterministic algorithms, warn where there is none, and leave uninitialised memory as it is."""
    _choose_deterministic(module, tell, fill=False)


def torch_deterministic_fill(module: Any, value: str, tell: Tell) -> None:
    """Choose deterministic algorithms, warn where there is none, and fill uninitialised memory with NaN."""
    _choose_deterministic(module, tell, fill=True)


def _choose_deterministic(torch: Any, tell: Tell, fill: bool) -> None:
    """As use_deterministic_algorithms does, but without the second that it takes to import Inductor's settings."""
    filling = getattr(torch.utils, "deterministic", None)
    if fill and filling is None:
        raise PatchUnfit("this PyTorch does not fill uninitialised memory (2.2 was the first); use torch-deterministic")
    try:
        private_api.set_deterministic_mode(torch, True, warn_only=True)
    except TypeError:
        raise PatchUnfit("this PyTorch raises where an operator has no deterministic algorithm (1.11 warns)") from None
    if filling is not None:
        filling.fill_uninitialized_memory = fill
    _set_mkldnn(torch, True)
    undo = [
        lambda: _turn_off(torch),
        swap(torch, "use_deterministic_algorithms", _hold_algorithms),
        swap(torch, "set_deterministic_debug_mode", _hold_debug_mode),
    ]
    tell.undo_by(all_of(undo))


def torch_deterministic_inductor(module: Any, value: str, tell: Tell) -> None:
    """Have Inductor choose by rule too, where it has a switch for that."""
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


def _turn_off(torch: Any) -> None:
    private_api.set_deterministic_mode(torch, False, warn_only=False)
    _set_mkldnn(torch, False)


def _set_mkldnn(torch: Any, wanted: bool) -> None:
    """oneDNN has a switch of its own, which the other leaves alone."""
    mkldnn = torch.backends.mkldnn
    if hasattr(mkldnn, "deterministic"):
        mkldnn.deterministic = wanted


def torch_cudnn(module: Any, value: str, tell: Tell) -> None:
    """Let cuDNN choose by rule and not by timing, and among deterministic algorithms only."""
    if not module.backends.cudnn.is_available():
        tell("this build of PyTorch has no cuDNN: there was nothing to choose")
    tell.undo_by(all_of([_pin(module, "benchmark", False), _pin(module, "deterministic", True)]))


def _pin(torch: Any, name: str, wanted: bool) -> Callable[[], None]:
    """Set one of cuDNN's switches, and keep what a script sets later from changing it."""
    setting = vars(type(torch.backends.cudnn))[name]
    before = setting.getter()
    setting.setter(wanted)

    def hold(original: Function) -> Function:
        return lambda _: original(wanted)

    # cudnn.benchmark = True goes by the one, cudnn.flags() by the other
    undo = [
        lambda: setting.setter(before),
        swap(setting, "setter", hold),
        swap(*private_api.cudnn_setter(torch, name), hold),
    ]
    return all_of(undo)


def torch_threads(module: Any, value: str, tell: Tell) -> None:
    """Compute on this many threads, whatever the script sets."""
    count, before = int(value), module.get_num_threads()
    module.set_num_threads(count)
    _set_interop(module, count, tell)
    undo = [
        lambda: module.set_num_threads(before),
        swap(module, "set_num_threads", functools.partial(_hold_count, count)),
        swap(module, "set_num_interop_threads", _ignore_count),
    ]
    tell.undo_by(all_of(undo))


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
