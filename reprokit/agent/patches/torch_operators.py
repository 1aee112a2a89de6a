"""Makes one operator of PyTorch deterministic: in eager code, the backward pass, and code compiled by Inductor.

The patch registers a kernel at the dispatch key BackendSelect, which each call passes below autograd and above the
devices' own kernels, in any thread. It calls the operator's own code: on a CPU with one thread, elsewhere in PyTorch's
deterministic mode.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from _thread import allocate_lock

from ..pytorch import private_api
from . import PatchContext, PatchRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.patching import Function

_DEVICES = ("CPU", "CUDA", "HIP", "XPU", "MPS", "SparseCPU", "SparseCUDA", "MkldnnCPU", "QuantizedCPU", "QuantizedCUDA")

# The operators into which Inductor decomposes others before it generates code; the one finally called is first.
_INDEX_PUT = ("index_put", "_unsafe_index_put", "_unsafe_masked_index_put_accumulate")
_SCATTER = ("scatter_reduce", "scatter_add", "scatter")
_COMPILED_AS = {
    **dict.fromkeys((*_INDEX_PUT, "index_add", "index_copy", "put", "embedding_dense_backward"), _INDEX_PUT),
    **dict.fromkeys(_SCATTER, _SCATTER),
}


def torch_operator(module: Any, value: str, context: PatchContext) -> None:
    """Make one operator deterministic, in all its overloads and on all devices."""
    _check(module)
    space = value.partition("::")[0]
    library = module.library.Library(space, "IMPL")
    context.on_undo(lambda: private_api.remove_library(library))
    names = private_api.operator_names(module)
    overloads = _overloads_to_patch(module, value, names)
    if not overloads and space == "aten":
        similar = difflib.get_close_matches(value, {name.partition(".")[0] for name in names}, 3)
        advice = ": is it " + " or ".join(similar) + "?" if similar else ""
        raise PatchRefused(f"PyTorch {module.__version__} has no operator {value}{advice}")
    if not overloads:  # an operator may be registered after this
        context(f"no library has brought {value} yet: it is patched when one does")
    single_thread, mode = SingleThread(module), _mode(module)
    for name in overloads or [value]:
        if not _is_patched(module, name):
            kernel = OverloadKernel(module, name, single_thread, mode)
            library.impl(name.partition("::")[2], kernel, "BackendSelect", with_keyset=True)


def _check(torch: Any) -> None:
    with_keyset = "with_keyset" in inspect.signature(torch.library.Library.impl).parameters
    if not (with_keyset and private_api.can_redispatch(torch)):
        raise PatchRefused("this PyTorch cannot call what it overrides (2.4 can): use torch-deterministic or threads=1")


def _overloads_to_patch(torch: Any, value: str, all_names: set[str]) -> list[str]:
    """Return the overloads to patch: the ones with device kernels, or else the explicit composite ones."""
    has = functools.partial(private_api.has_kernel, torch)
    names = _overloads_of(value, all_names)
    matching = [name for name in names if value in (name, name.partition(".")[0])]
    if any(has(name, "BackendSelect") and not _is_patched(torch, name) for name in matching):
        raise PatchRefused(f"{value} makes a tensor of nothing; for what is in its memory: torch-deterministic-fill")
    on_devices = [name for name in names if any(has(name, device) for device in _DEVICES)]
    if not on_devices and any(has(name, "CompositeImplicitAutograd") for name in matching):
        raise PatchRefused(f"{value} is made of other operators, which a profile shows: name those")
    return on_devices or [name for name in names if has(name, "CompositeExplicitAutograd")]


def _overloads_of(value: str, all_names: set[str]) -> list[str]:
    """Return the overload that value names, or all overloads of its family."""
    space, _, rest = value.partition("::")
    if "." in rest:
        return [value] if value in all_names else []
    family = {f"{space}::{name}" for name in _family(rest)}
    return sorted(name for name in all_names if name.partition(".")[0] in family)


def _is_patched(torch: Any, name: str) -> bool:
    """Return whether this patch has overridden the overload already, for another value."""
    return private_api.is_overridden(torch, name, "BackendSelect")


def _family(name: str) -> tuple[str, ...]:
    base = name[:-1] if name.endswith("_") else name
    if base.startswith("_") and base.endswith("_impl"):
        base = base[1:-5]
    return base, base + "_", f"_{base}_impl_"


class OverloadKernel:
    """The kernel of one overload; it caches the dispatch by key set, as it may be called millions of times."""

    def __init__(self, torch: Any, name: str, single_thread: SingleThread, mode: DeterministicMode) -> None:
        self._torch = torch
        self._name = name
        self._single_thread = single_thread
        self._mode = mode
        self._bits = private_api.bits_of_keys(torch)
        self._dispatches: dict[object, tuple[Function, Any, bool, bool]] = {}  # by the bits of the dispatch key set

    def __call__(self, keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        """Return the operator's result, computed deterministically."""
        bits = self._bits(keyset)
        if bits not in self._dispatches:
            self._dispatches[bits] = self._dispatch(keyset)
        call, keys_below, computes, not_on_cpu = self._dispatches[bits]
        if not computes:
            return call(keys_below, *arguments, **keywords)
        if not_on_cpu:
            self._mode.enter()
        previous = self._single_thread.enter()
        try:
            return call(keys_below, *arguments, **keywords)
        finally:
            self._single_thread.leave(previous)
            if not_on_cpu:
                self._mode.leave()

    def _dispatch(self, keyset: Any) -> tuple[Function, Any, bool, bool]:
        """Return the function to call, its dispatch keys, whether it computes, and whether not on a CPU."""
        path, _, overload = self._name.partition(".")
        space, _, base = path.partition("::")
        operator = getattr(getattr(self._torch.ops, space), base)  # not earlier: it may be registered after the patch
        return (getattr(operator, overload or "default").redispatch, *private_api.keys_below(self._torch, keyset))


class SingleThread:
    """Sets OpenMP's and MKL's number of threads to one, for the calling thread only."""

    def __init__(self, torch: Any) -> None:
        self._count = torch.get_num_threads  # also initializes a new thread's count, which must not happen later
        self._set, self._set_mkl = _count_setters(torch)

    def enter(self) -> tuple[int, int]:
        """Set one thread; return the previous counts of OpenMP and MKL."""
        previous: int = self._count()
        if previous == 1:
            return 1, 0
        self._set(1)
        return previous, self._set_mkl(1)

    def leave(self, previous: tuple[int, int]) -> None:
        """Restore the previous counts."""
        if previous[0] != 1:
            self._set(previous[0])
            self._set_mkl(previous[1])


def _count_setters(torch: Any) -> tuple[Function, Function]:
    """Return the setters of OpenMP and MKL for the calling thread; PyTorch's own setter is for all threads."""
    import ctypes

    def find(name: str) -> Any:
        for path in (None, torch.__path__[0] + "/lib/libtorch_cpu.so"):
            try:
                return getattr(ctypes.PyDLL(path), name)
            except (OSError, AttributeError):
                pass
        return None

    openmp, mkl = find("omp_set_num_threads"), find("MKL_Set_Num_Threads_Local")
    if openmp is None or not _takes_effect(openmp, torch):
        openmp = private_api.set_thread_count(torch)
    return openmp, mkl or (lambda count: 0)


def _takes_effect(set_count: Function, torch: Any) -> bool:
    previous: int = torch.get_num_threads()
    set_count(previous + 1)
    has_changed: bool = torch.get_num_threads() == previous + 1
    set_count(previous)
    return has_changed


class DeterministicMode:
    """Turns on PyTorch's deterministic mode, which all threads share, while any of them is in a patched operator."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._previous = (False, False, False)
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start afresh, also in a forked child, where no other thread is within an operator."""
        self._lock = allocate_lock()
        self._users = 0

    def enter(self) -> None:
        """Turn the mode on, with warnings only, and without filling memory that the operator writes anyway."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._previous = private_api.deterministic_mode(self._torch)
                if not self._previous[0]:  # a script that asked for errors keeps them
                    private_api.set_deterministic_mode(self._torch, True, True, False)

    def leave(self) -> None:
        """Restore the previous mode when the last user leaves."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and not self._previous[0]:
                private_api.set_deterministic_mode(self._torch, *self._previous)


@functools.lru_cache(maxsize=1)
def _mode(torch: Any) -> DeterministicMode:
    """Return the instance for all operators: two would turn the mode off under each other."""
    return DeterministicMode(torch)


def torch_operator_compiled(module: Any, value: str, context: PatchContext) -> None:
    """Make Inductor call the operator instead of generating atomic additions."""
    torch = sys.modules["torch"]
    _check(torch)
    base = _family(value.partition("::")[2].partition(".")[0])[0]
    compiled_as = _COMPILED_AS.get(base, (base,))
    if compiled_as[0] != base:
        torch_operator(torch, "aten::" + compiled_as[0], context)
    names = {f"aten::{form}" for name in compiled_as for form in _family(name)}
    previous_lowerings = {
        operator: module.lowerings[operator]
        for operator in module.lowerings
        if private_api.operator_name(operator) in names
    }
    for operator, lower in previous_lowerings.items():
        module.lowerings[operator] = _make_lowering(lower, _mode(torch))
    _separate_cache(torch, value)
    context.on_undo(lambda: module.lowerings.update(previous_lowerings))


def _separate_cache(torch: Any, value: str) -> None:
    """Keep code compiled with and without the patch apart in Inductor's cache."""
    config: Any = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):
        config.cache_key_tag += " reprokit:" + value
    else:
        private_api.disable_graph_cache(torch)


def _make_lowering(original: Function, mode: DeterministicMode) -> Function:
    def lower(*arguments: Any, **keywords: Any) -> Any:
        mode.enter()
        try:
            return original(*arguments, **keywords)
        finally:
            mode.leave()

    return lower
