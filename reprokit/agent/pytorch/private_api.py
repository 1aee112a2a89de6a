"""Every private name of PyTorch that the agent uses, once, with the versions in which it was seen.

Whoever needs one asks this module. tests/agent/test_pytorch_private_api.py says what a new release lacks, and who uses
one of these names elsewhere.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from operator import attrgetter, methodcaller

from ..core.native_module import load
from ..core.patching import replace
from ..reader_names import taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

# Dotted path -> the versions it was seen in, by this project's tests; "until" where newer ones have another way.
SEEN: Mapping[str, str] = {
    "torch.Tensor._indices": "2.13",
    "torch.Tensor._values": "2.13",
    "torch.Tensor._version": "2.13",
    "torch.Generator._cdata": "2.13",
    "torch.UntypedStorage._cdata": "2.13",
    "torch.cuda._initialized": "2.13",
    "torch._amp_foreach_non_finite_check_and_unscale_": "2.13",
    "torch._foreach_copy_": "2.13",
    "torch._dynamo.eval_frame.OptimizedModule": "2.13",
    "torch._dynamo.eval_frame.skip_code": "2.13",
    "torch._inductor.config.fx_graph_cache": "2.13",
    "torch.ops.aten.add.Tensor._schema": "2.13",
    "torch._ops.OpOverload.redispatch": "2.13",
    "torch.ops.aten.add._qualified_op_name": "2.13",
    "torch._subclasses.FakeTensor": "2.13",
    "torch._C.DispatchKey.BackendSelect": "2.13",
    "torch._C.DispatchKeySet.raw_repr": "2.13",
    "torch._C.DisableTorchFunction": "2.13",
    "torch._C._autograd._get_sequence_nr": "2.13",
    "torch._C._current_autograd_node": "2.13",
    "torch._C._current_graph_task_id": "2.13",
    "torch._C._disabled_torch_dispatch_impl": "2.13",
    "torch._C._dispatch_get_all_op_names": "2.13",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "2.13",
    "torch._C._dispatch_keyset_full_after": "2.13",
    "torch._C._dispatch_keyset_to_string": "2.13",
    "torch._C._functorch.is_functorch_wrapped_tensor": "2.13",
    "torch._C._get_cublas_allow_tf32": "2.13",
    "torch._C._get_cudnn_allow_tf32": "2.13",
    "torch._C._get_deterministic_algorithms": "2.13",
    "torch._C._get_deterministic_algorithms_warn_only": "2.13",
    "torch._C._get_deterministic_fill_uninitialized_memory": "2.13",
    "torch._C._get_dispatch_stack_at": "2.13",
    "torch._C._get_mkldnn_deterministic": "2.13",
    "torch._C._get_tracing_state": "2.13",
    "torch._C._get_mkldnn_enabled": "2.13",
    "torch._C._len_torch_dispatch_stack": "2.13",
    "torch._C._set_cudnn_benchmark": "2.13",
    "torch._C._set_cudnn_deterministic": "2.13",
    "torch._C._set_deterministic_algorithms": "2.13",
    "torch._C._set_deterministic_fill_uninitialized_memory": "2.13",
    "torch._C.set_num_threads": "2.13",
    "torch.autograd.graph.Node._sequence_nr": "2.13",
    "torch.autograd.graph._engine_run_backward": "2.13",
    "torch.distributed.distributed_c10d._get_default_store": "2.13",
    "torch.library.Library._destroy": "2.13",
    "torch.library._impls": "2.13",
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data": "2.13",
    "torch.nn.Module()._buffers": "2.13",
    "torch.nn.Module()._modules": "2.13",
    "torch.nn.Module()._parameters": "2.13",
    "torch.nn.modules.loss._Loss": "2.13",
    "torch.nn.modules.module._global_forward_pre_hooks": "2.13",
    "torch.optim.Optimizer._hook_for_profile": "until 1.13",
    "torch.optim.Optimizer.profile_hook_step": "2.13",
    "torch.optim.lr_scheduler._LRScheduler": "2.13",
    "torch.overrides._push_mode": "2.13",
    "torch.utils._python_dispatch._pop_mode": "2.13",
    "torch.utils._python_dispatch._push_mode": "2.13",
    "torch.utils.data._utils.fetch._IterableDatasetFetcher": "2.13",
    "torch.utils.data._utils.fetch._MapDatasetFetcher": "2.13",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "2.13",
    "torch.utils.data.dataloader._BaseDataLoaderIter._next_index": "2.13",
    "torch.utils.data.dataloader._BaseDataLoaderIter._reset": "2.13",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._get_data": "2.13",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._process_data": "2.13",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data": "2.13",
}

MAX_FACT = 4000  # characters


def without_overrides(torch: Any) -> Any:
    """Return a context in which subclasses of tensors, and modes, do not see what is called."""
    return torch._C.DisableTorchFunction()


NO_TASK = -1


def engine_task(torch: Any) -> Callable[[], int]:
    """Return a function that gives the number of the backward pass that this thread is inside of, or NO_TASK."""
    return getattr(torch._C, "_current_graph_task_id", lambda: NO_TASK)


traced_graph = attrgetter("_C._get_tracing_state")  # a function: the graph that torch.jit makes of this thread, or None


def is_functorch_wrapped(torch: Any, tensor: Any) -> bool:
    """Return whether a transform of functorch stands between this tensor and its numbers."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.is_functorch_wrapped_tensor(tensor)


changes = attrgetter("_version")  # how often a tensor was changed in place; no function of ours, as steps ask often


def changes_of(tensors: list[Any]) -> int:
    """Return how often all of these were."""
    return sum(map(changes, tensors))


def compiled(torch: Any, library: str) -> Any:
    """The compiled module beside the trail's library, to which DLPack's exchange describes tensors where it can."""
    module = load(library)
    if module is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        module.use_exchange(torch.Tensor)
    return module


def sparse_parts(tensor: Any) -> dict[str, Any]:
    """Indices and values of a sparse tensor in coordinates, coalesced or not."""
    return {"indices": tensor._indices(), "values": tensor._values()}


def stored_values(tensor: Any) -> Any:
    """Return the values of a tensor of any layout that are in memory."""
    layout = str(tensor.layout).rpartition(".")[2]
    if layout == "sparse_coo":
        return tensor._values()
    return tensor.values() if layout.startswith("sparse") or layout == "jagged" else tensor


def storage(tensor: Any) -> int:
    """Return what stands for the memory of a tensor's values."""
    return stored_values(tensor).untyped_storage()._cdata  # type: ignore[no-any-return]


def flag_not_finite(torch: Any, tensors: Sequence[Any], flag: Any, one: Any) -> None:
    """Set the flag where a tensor on its device is not finite, without waiting; the tensors stay what they are."""
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, one)


def copy_each(torch: Any, into: list[Any], values: list[Any]) -> None:
    """Copy values into tensors of the same build, by one call where PyTorch has it (2.1)."""
    if into and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(into, values)
        return
    for tensor, value in zip(into, values):
        tensor.copy_(value)


def ranks_store(distributed: Any) -> Any:
    """Return what the ranks of a training know each other by."""
    return distributed.distributed_c10d._get_default_store()


def buckets(model: Any) -> dict[str, object]:
    """Return how DDP puts the gradients of a model into buckets: bytes of each, and the parameters, in their order."""
    facts = model._get_ddp_logging_data()
    names = {
        "buckets": "bucket_sizes",
        "rebuilt_buckets": "rebuilt_bucket_sizes",
        "order": "rebuilt_per_bucket_param_indices",
        "bucket_bytes": "bucket_cap_bytes",
        "hook": "comm_hook",
    }
    return {name: str(facts[key])[:MAX_FACT] for name, key in names.items() if facts.get(key) not in (None, "")}


address = attrgetter("_cdata")  # where the object behind a generator lies
uses_cuda = attrgetter("cuda._initialized")  # whether this process has begun to use a GPU, of torch
containers = attrgetter("_parameters", "_buffers", "_modules")  # those that a module itself has


def is_module(value: Any) -> bool:
    """Return whether it is a module that was initialized."""
    return "_modules" in vars(value)


def is_loss(module: Any) -> bool:
    """Return whether a module computes a loss."""
    return isinstance(module, sys.modules["torch"].nn.modules.loss._Loss)


loader_iterator = attrgetter("_BaseDataLoaderIter")  # the class of the iterators of DataLoaders


def watch_indices(module: Any, replace: Callable[..., None]) -> None:
    """Note what samplers choose, in order, as workers are told ahead of time; and which worker gave a batch."""

    def make_reset(original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(iterator: Any, *arguments: Any, **keywords: Any) -> None:
            iterator._reprokit_indices = deque()
            original(iterator, *arguments, **keywords)

        return reset

    def make_next_index(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            indices = original(iterator)
            noted = vars(iterator).get("_reprokit_indices")
            if noted is None:  # of a loader without workers, which resets nothing
                noted = iterator._reprokit_indices = deque()
            if getattr(iterator, "_in_order", True):
                noted.append(indices)
            return indices

        return next_index

    def make_process_data(original: Callable[..., Any]) -> Callable[..., Any]:
        def process_data(iterator: Any, data: Any, *worker: Any) -> Any:  # PyTorch before 2.6 does not say which
            iterator._reprokit_worker = worker[0] if worker else None
            return original(iterator, data, *worker)

        return process_data

    replace(module._BaseDataLoaderIter, "_reset", make_reset)
    replace(module._BaseDataLoaderIter, "_next_index", make_next_index)
    replace(module._MultiProcessingDataLoaderIter, "_process_data", make_process_data)


def watch_unordered(module: Any, next_batch: Callable[..., Any], seconds: float) -> None:
    """Have the batches of loaders that give them as they come taken by this function.

    It is given the iterator, the number of the first batch that is missing, what waits for the next one that comes,
    and what waits for so many seconds.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_data(iterator: Any) -> Any:
            # Where no batch is to come, workers are asked whether they are ready for another epoch.
            if getattr(iterator, "_in_order", True) or not iterator._tasks_outstanding:
                return original(iterator)
            get, try_get = partial(original, iterator), partial(iterator._try_get_data, seconds)
            return next_batch(iterator, iterator._rcvd_idx, get, try_get)

        return get_data

    replace(module._MultiProcessingDataLoaderIter, "_get_data", make)


def next_indices(iterator: Any) -> tuple[Any, int | None]:
    """The indices of the batch that an iterator gave last, or what a reader calls its samples; and the worker."""
    noted = vars(iterator)
    chosen = noted.get("_reprokit_indices")
    indices = chosen.popleft() if chosen else None
    reader = getattr(noted.get("_dataset_fetcher"), "dataset_iter", None)
    return (reader and taken(reader)) or indices, noted.get("_reprokit_worker")


def is_scaler_enabled(scaler: Any) -> bool:
    """Return whether a GradScaler does anything."""
    return getattr(scaler, "_enabled", True)


def skips_by_itself(optimizer: Any) -> bool:
    """Return whether a fused optimizer looks for overflows on the device, and its scaler always calls it."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def has_children(value: Any) -> bool:
    """Return whether it is a module, or looks like one."""
    return hasattr(value, "_modules")


def schedule_classes(module: Any) -> list[type]:
    """Return the classes of schedules of learning rates that call no other's initializer."""
    names = "LRScheduler", "_LRScheduler", "ReduceLROnPlateau"
    return [getattr(module, name) for name in names if hasattr(module, name)]


# What the state of a schedule holds that decides no learning rate.
NOTES_OF_SCHEDULES = frozenset(["_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"])


def push_function_mode(torch: Any, mode: Any) -> None:
    """Let a mode see all calls of PyTorch's functions, to the end."""
    torch.overrides._push_mode(mode)


OLD_STEP_HOOK = "_hook_for_profile"  # the method by which PyTorch before 2.0 wraps the step of each optimizer's class


def never_compile(module: Any, code: Any) -> None:
    """Tell dynamo (torch._dynamo.eval_frame) to leave this code as it is."""
    module.skip_code(code)


def schema(operator: Any) -> Any:
    """Return the declaration of an operator; None of one of higher order."""
    return getattr(operator, "_schema", None)


def operator_name(operator: Any) -> str:
    """Return the name of an operator, or of a packet of its overloads, such as aten::add."""
    found = schema(operator)
    return str(found.name if found is not None else getattr(operator, "_qualified_op_name", ""))


def operator_names(torch: Any) -> set[str]:
    """Return the names of all operators, with their overloads."""
    return set(torch._C._dispatch_get_all_op_names())


def has_kernel(torch: Any, name: str, key: str) -> bool:
    """Return whether this operator has a kernel of its own for this dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)  # type: ignore[no-any-return]


def is_overridden(torch: Any, name: str, key: str) -> bool:
    """Return whether a library of Python's side has overridden the operator for this key."""
    return f"{name.replace('::', '/')}/{key}" in getattr(torch.library, "_impls", ())


remove_library = methodcaller("_destroy")  # takes back what a library of Python's side has overridden


def can_redispatch(torch: Any) -> bool:
    """Return whether an operator that is overridden can be called from within (PyTorch 2.4)."""
    return hasattr(torch._ops.OpOverload, "redispatch")


def bits_of_keys(torch: Any) -> Callable[[Any], object]:
    """Return a function that gives what stands for a set of dispatch keys in a dict."""
    return getattr(torch._C.DispatchKeySet, "raw_repr", torch._C._dispatch_keyset_to_string)  # type: ignore[no-any-return]


def keys_below(torch: Any, keyset: Any) -> tuple[Any, bool, bool]:
    """Return the keys that come after BackendSelect's; whether what they lead to computes, and whether not on a CPU."""
    keys = torch._C.DispatchKey
    below = keyset & torch._C._dispatch_keyset_full_after(keys.BackendSelect)
    device = below.highestPriorityTypeId()
    return below, device != keys.Meta, device != keys.CPU


def deterministic_mode(torch: Any) -> tuple[bool, bool, bool]:
    """Return whether it is on, whether it only warns, and whether uninitialized memory is filled."""
    core = torch._C
    fill = getattr(core, "_get_deterministic_fill_uninitialized_memory", lambda: False)()
    return core._get_deterministic_algorithms(), core._get_deterministic_algorithms_warn_only(), fill


def set_deterministic_mode(torch: Any, is_on: bool, warn_only: bool, fill: bool | None = None) -> None:
    """Set it without importing Inductor's settings, which takes a second. TypeError before PyTorch 1.11."""
    core = torch._C
    if fill is not None:
        getattr(core, "_set_deterministic_fill_uninitialized_memory", lambda _: None)(fill)
    core._set_deterministic_algorithms(is_on, warn_only=warn_only)


set_thread_count = attrgetter("_C.set_num_threads")  # what torch.set_num_threads calls


def cudnn_setter(torch: Any, name: str) -> tuple[Any, str]:
    """Return where the setter of one of cuDNN's switches stands."""
    return torch._C, "_set_cudnn_" + name


def tf32_setters(torch: Any) -> dict[str, tuple[Any, str]]:
    """Return where the setters stand that allow TF32, by the names of the settings."""
    return {
        "torch.backends.cuda.matmul.allow_tf32": (torch._C, "_set_cublas_allow_tf32"),
        "torch.backends.cudnn.allow_tf32": (torch._C, "_set_cudnn_allow_tf32"),
    }


# Settings that only private functions tell: the name that users know, and the way to the function in torch.
READ_SETTINGS = {
    "torch.backends.cudnn.allow_tf32": "_C._get_cudnn_allow_tf32",
    "torch.backends.cuda.matmul.allow_tf32": "_C._get_cublas_allow_tf32",
    "torch.backends.mkldnn.enabled": "_C._get_mkldnn_enabled",
    "torch.backends.mkldnn.deterministic": "_C._get_mkldnn_deterministic",
}


def disable_graph_cache(torch: Any) -> None:
    """Make Inductor compile each graph anew."""
    torch._inductor.config.fx_graph_cache = False


def sees_operators(torch: Any) -> bool:
    """Return whether a mode can be told of each operator (PyTorch 2.0)."""
    return hasattr(torch._C, "_len_torch_dispatch_stack") and hasattr(torch._C, "_get_dispatch_stack_at")


count_modes = attrgetter("_C._len_torch_dispatch_stack")  # a function: how many dispatch modes this thread has on
mode_class = attrgetter("utils._python_dispatch.TorchDispatchMode")  # of torch


def push_mode(torch: Any, mode: Any) -> None:
    """Put a dispatch mode on. Not by `with`, whose flags are not kept for each thread."""
    torch.utils._python_dispatch._push_mode(mode)


def pop_mode(torch: Any, mode: Any) -> None:
    """Take it off, unless another one is above it."""
    top = torch._C._len_torch_dispatch_stack() - 1
    if top >= 0 and torch._C._get_dispatch_stack_at(top) is mode:
        torch.utils._python_dispatch._pop_mode()


def own_classes(torch: Any) -> Callable[[Any], tuple[list[Any], bool]]:
    """A function that gives those of some classes that dispatch by themselves, and whether one is of who traces."""
    disabled = torch._C._disabled_torch_dispatch_impl

    def own(types: Any) -> tuple[list[Any], bool]:
        found = [type_ for type_ in types if type_.__torch_dispatch__ is not disabled]
        return found, any(type_.__module__.startswith("torch._subclasses.") for type_ in found)

    return own


def next_node(torch: Any) -> Callable[[], int]:
    """Return a function that gives the number of the graph's next node on this thread."""
    return getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None) or (lambda: 0)


node_number = methodcaller("_sequence_nr")  # of a node of the graph, which got it from that function


def tells_nodes(torch: Any) -> bool:
    """Return whether it is known which node of the graph is being executed (PyTorch 2.1)."""
    return hasattr(torch._C, "_current_autograd_node")


def current_node(torch: Any) -> Callable[[], Any]:
    """Return a function that gives the node of the graph that is being executed, or None."""
    return getattr(torch._C, "_current_autograd_node", None) or (lambda: None)


def loader_fetchers() -> list[Any]:
    """Return the classes by which a loader, or its worker, gets a batch."""
    module = sys.modules.get("torch.utils.data._utils.fetch")
    found = [getattr(module, name, None) for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher")]
    return [one for one in found if one is not None]


def start_method(loader: Any) -> str | None:
    """Return how a loader starts its workers, where that was chosen."""
    method = getattr(getattr(loader, "multiprocessing_context", None), "_name", None)
    return method if isinstance(method, str) else None
