"""One operator of PyTorch made to repeat: in eager code, in the backward pass, and in what Inductor compiles.

A kernel of ours stands at the key BackendSelect, which every call passes below autograd and above the devices' own
kernels, in whichever thread it is made. There it calls the operator's own code: on a CPU on one thread, elsewhere in
PyTorch's deterministic mode.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from _thread import allocate_lock

from ..pytorch import private_api
from . import PatchUnfit, Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.patching import Function

_DEVICES = ("CPU", "CUDA", "HIP", "XPU", "MPS", "SparseCPU", "SparseCUDA", "MkldnnCPU", "QuantizedCPU", "QuantizedCUDA")

# What Inductor makes of operators before it writes code for them; what is called in the end stands first.
_INDEX_PUT = ("index_put", "_unsafe_index_put", "_unsafe_masked_index_put_accumulate")
_SCATTER = ("scatter_reduce", "scatter_add", "scatter")
_COMPILED_AS = {
    **dict.fromkeys((*_INDEX_PUT, "index_add", "index_copy", "put", "embedding_dense_backward"), _INDEX_PUT),
    **dict.fromkeys(_SCATTER, _SCATTER),
}


def torch_operator(module: Any, value: str, tell: Tell) -> None:
    """Make one operator repeat, in all its forms and on all devices."""
    _check(module)
    space = value.partition("::")[0]
    library = module.library.Library(space, "IMPL")
    tell.undo_by(lambda: private_api.remove_library(library))
    known = private_api.operator_names(module)
    forms = _forms(module, value, known)
    if not forms and space == "aten":
        near = difflib.get_close_matches(value, {name.partition(".")[0] for name in known}, 3)
        advice = ": is it " + " or ".join(near) + "?" if near else ""
        raise PatchUnfit(f"PyTorch {module.__version__} has no operator {value}{advice}")
    if not forms:  # a registration may come before its operator
        tell(f"no library has brought {value} yet: it is patched when one does")
    once, mode = OneThread(module), _mode(module)
    for name in forms or [value]:
        if not _is_patched(module, name):
            kernel = OverloadKernel(module, name, once, mode)
            library.impl(name.partition("::")[2], kernel, "BackendSelect", with_keyset=True)


def _check(torch: Any) -> None:
    with_keyset = "with_keyset" in inspect.signature(torch.library.Library.impl).parameters
    if not (with_keyset and private_api.can_redispatch(torch)):
        raise PatchUnfit("this PyTorch cannot call what it overrides (2.4 can): use torch-deterministic or threads=1")


def _forms(torch: Any, value: str, known: set[str]) -> list[str]:
    """Return the operators that compute it: in place, into an output, and the one that others are made of."""
    has = functools.partial(private_api.has_kernel, torch)
    names = _named(value, known)
    own = [name for name in names if value in (name, name.partition(".")[0])]
    if any(has(name, "BackendSelect") and not _is_patched(torch, name) for name in own):
        raise PatchUnfit(f"{value} makes a tensor of nothing; for what is in its memory: torch-deterministic-fill")
    on_devices = [name for name in names if any(has(name, device) for device in _DEVICES)]
    if not on_devices and any(has(name, "CompositeImplicitAutograd") for name in own):
        raise PatchUnfit(f"{value} is made of other operators, which a profile shows: name those")
    return on_devices or [name for name in names if has(name, "CompositeExplicitAutograd")]


def _named(value: str, known: set[str]) -> list[str]:
    """One overload where one is named, else all overloads of its family."""
    space, _, rest = value.partition("::")
    if "." in rest:
        return [value] if value in known else []
    wanted = {f"{space}::{name}" for name in _family(rest)}
    return sorted(name for name in known if name.partition(".")[0] in wanted)


def _is_patched(torch: Any, name: str) -> bool:
    """Return whether another value of this patch, which has a form in common, came first."""
    return private_api.is_overridden(torch, name, "BackendSelect")


def _family(name: str) -> tuple[str, ...]:
    base = name[:-1] if name.endswith("_") else name
    if base.startswith("_") and base.endswith("_impl"):
        base = base[1:-5]
    return base, base + "_", f"_{base}_impl_"


class OverloadKernel:
    """Stands before one overload: called perhaps a million times, so that each way through it is looked up once."""

    def __init__(self, torch: Any, name: str, once: OneThread, mode: DeterministicMode) -> None:
        self._torch = torch
        self._name = name
        self._once = once
        self._mode = mode
        self._bits = private_api.bits_of_keys(torch)
        self._ways: dict[object, tuple[Function, Any, bool, bool]] = {}  # by the bits of the set of keys

    def __call__(self, keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        """Return what the operator itself comes to, where nothing can come between."""
        bits = self._bits(keyset)
        if bits not in self._ways:
            self._ways[bits] = self._way(keyset)
        call, below, computes, elsewhere = self._ways[bits]
        if not computes:
            return call(below, *arguments, **keywords)
        if elsewhere:
            self._mode.enter()
        before = self._once.enter()
        try:
            return call(below, *arguments, **keywords)
        finally:
            self._once.leave(before)
            if elsewhere:
                self._mode.leave()

    def _way(self, keyset: Any) -> tuple[Function, Any, bool, bool]:
        """Return how to call it, with which keys, whether it computes anything, and whether not on a CPU."""
        path, _, overload = self._name.partition(".")
        space, _, base = path.partition("::")
        operator = getattr(getattr(self._torch.ops, space), base)  # now: it may have been registered after this
        return (getattr(operator, overload or "default").redispatch, *private_api.keys_below(self._torch, keyset))


class OneThread:
    """Lets the calling thread compute alone: OpenMP's and MKL's counts are set for this thread only."""

    def __init__(self, torch: Any) -> None:
        self._count = torch.get_num_threads  # also sets a new thread's count, which must not come later
        self._set, self._set_mkl = _counts(torch)

    def enter(self) -> tuple[int, int]:
        """Go down to one, and say what it was."""
        before: int = self._count()
        if before == 1:
            return 1, 0
        self._set(1)
        return before, self._set_mkl(1)

    def leave(self, before: tuple[int, int]) -> None:
        """Go back."""
        if before[0] != 1:
            self._set(before[0])
            self._set_mkl(before[1])


def _counts(torch: Any) -> tuple[Function, Function]:
    """Return the functions of the libraries that PyTorch computes with; PyTorch's own is for all threads at once."""
    import ctypes

    def find(name: str) -> Any:
        for place in (None, torch.__path__[0] + "/lib/libtorch_cpu.so"):
            try:
                return getattr(ctypes.PyDLL(place), name)
            except (OSError, AttributeError):
                pass
        return None

    openmp, mkl = find("omp_set_num_threads"), find("MKL_Set_Num_Threads_Local")
    if openmp is None or not _works(openmp, torch):
        openmp = private_api.set_thread_count(torch)
    return openmp, mkl or (lambda count: 0)


def _works(set_count: Function, torch: Any) -> bool:
    before: int = torch.get_num_threads()
    set_count(before + 1)
    worked: bool = torch.get_num_threads() == before + 1
    set_count(before)
    return worked


class DeterministicMode:
    """PyTorch's deterministic mode, which all threads share: on while any of them is in a patched operator."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before = (False, False, False)
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """At the beginning, and in a forked child: the parent's other threads are within operators of the parent's."""
        self._lock = allocate_lock()
        self._inside = 0

    def enter(self) -> None:
        """Turn it on, with warnings only, and without filling memory that the operator is about to write."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = private_api.deterministic_mode(self._torch)
                if not self._before[0]:  # a script that asked for errors keeps them
                    private_api.set_deterministic_mode(self._torch, True, True, False)

    def leave(self) -> None:
        """As it was, when the last one leaves."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and not self._before[0]:
                private_api.set_deterministic_mode(self._torch, *self._before)


@functools.lru_cache(maxsize=1)
def _mode(torch: Any) -> DeterministicMode:
    """One for all operators: two that each put back what they found would turn it off under the other."""
    return DeterministicMode(torch)


def torch_operator_compiled(module: Any, value: str, tell: Tell) -> None:
    """Make Inductor call the operator instead of writing atomic additions for it."""
    torch = sys.modules["torch"]
    _check(torch)
    base = _family(value.partition("::")[2].partition(".")[0])[0]
    compiled_as = _COMPILED_AS.get(base, (base,))
    if compiled_as[0] != base:
        torch_operator(torch, "aten::" + compiled_as[0], tell)
    names = {f"aten::{form}" for name in compiled_as for form in _family(name)}
    before = {
        operator: module.lowerings[operator]
        for operator in module.lowerings
        if private_api.operator_name(operator) in names
    }
    for operator, lower in before.items():
        module.lowerings[operator] = _make_lowering(lower, _mode(torch))
    _part_cache(torch, value)
    tell.undo_by(lambda: module.lowerings.update(before))


def _part_cache(torch: Any, value: str) -> None:
    """What was compiled without the patch must not be taken for what is compiled with it, nor the other way."""
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
