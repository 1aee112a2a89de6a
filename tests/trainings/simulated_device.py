"""Importing this gives PyTorch a device "simulated", which stands for a GPU where there is none.

Its tensors hold their values where nothing but the device's operators gets at them: no address leads to them, NumPy
refuses them, and so do operators that are given tensors of the CPU as well. What would wait for a GPU (a number that is
read, a copy to the CPU) says so on stderr, as `torch.cuda.set_sync_debug_mode("warn")` does. Its random numbers come
from a generator that stands where CUDA's do. A backend in Python: test/test_privateuseone_python_backend.py of PyTorch.
"""

import atexit
import contextlib
import sys
import time

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "simulated"
NOWHERE = 1 << 40  # an address at which there is nothing

_setup_privateuseone_for_python_backend(NAME)
# The thread of the last backward pass lets go of its tensors, which are Python's: it must not when Python is gone.
atexit.register(time.sleep, 0.5)
aten = torch.ops.aten
MOVES = (aten.copy_.default, aten._to_copy.default)


class OnDevice(torch.Tensor):
    """A tensor on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        facts = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, device=f"{NAME}:0", **facts)

    def __init__(self, values):
        self.values = values

    def __repr__(self):
        return f"OnDevice({tuple(self.shape)})"

    def data_ptr(self):
        return NOWHERE

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator not in MOVES:
            tree_map_only(torch.Tensor, _require_on_device, (args, kwargs))
        is_from_device = _is_from_device(operator, args, kwargs)
        if is_from_device:
            print(f"called a synchronizing operation: {operator}", file=sys.stderr)
        here = {**kwargs, "device": "cpu"} if kwargs.get("device") is not None else kwargs
        args_here, here = tree_map_only(OnDevice, lambda tensor: tensor.values, (args, here))
        with _drawing() if torch.Tag.nondeterministic_seeded in operator.tags else contextlib.nullcontext():
            result = operator(*args_here, **here)
        if is_from_device:
            return args[0] if operator is aten.copy_.default else result
        return return_and_correct_aliasing(operator, args, kwargs, tree_map_only(torch.Tensor, OnDevice, result))


def _require_on_device(tensor):
    if not isinstance(tensor, OnDevice) and tensor.dim():
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {tensor.device} and {NAME}")


def _is_from_device(operator, args, kwargs):
    if operator is aten._to_copy.default:
        return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
    if operator is aten.copy_.default:
        return not isinstance(args[0], OnDevice)
    return operator in (aten._local_scalar_dense.default, aten.equal.default)


@contextlib.contextmanager
def _drawing():
    """Random numbers come from the device's generator."""
    before, (generator,) = torch.default_generator.get_state(), torch.cuda.default_generators
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


library = torch.library.Library("aten", "IMPL")


@torch.library.impl(library, "empty.memory_format", "PrivateUse1")
def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return OnDevice(torch.empty(size, dtype=dtype, memory_format=memory_format))


@torch.library.impl(library, "empty_strided", "PrivateUse1")
def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


torch.backends.cuda.is_built = torch.cuda.is_available = lambda: True
torch.cuda._initialized, torch.cuda.default_generators = True, (torch.Generator(),)
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.device_count, torch.cuda.current_device, torch.cuda.get_device_name = (
    lambda: 1,
    lambda: 0,
    lambda number: NAME,
)
