"""Every private name of PyTorch that the agent uses, once; other modules use them through this one.

private_api.json has the versions in which the tests found each ("until": newer ones have a replacement).
tests/agent/test_pytorch_private_api.py lists the names that a new release lacks, and uses of these names elsewhere.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from itertools import tee
from operator import attrgetter, methodcaller

from ..core.native_module import load
from ..core.patching import replace
from ..core.reader_names import taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MAX_FACT = 4000  # characters
MAX_SCALINGS = 4  # operations behind a loss function, such as a mean and a division


def without_overrides(torch: Any) -> Any:
    """Return a context in which calls bypass tensor subclasses and function modes."""
    return torch._C.DisableTorchFunction()


NO_TASK = -1


def engine_task(torch: Any) -> Callable[[], int]:
    """Return a function that returns the id of this thread's current backward pass, or NO_TASK."""
    return getattr(torch._C, "_current_graph_task_id", lambda: NO_TASK)


traced_graph = attrgetter(
    "_C._get_tracing_state"
)  # a function: the graph that torch.jit traces on this thread, or None


def is_functorch_wrapped(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor is wrapped by a transform of functorch."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.is_functorch_wrapped_tensor(tensor)


changes = attrgetter("_version")  # the version counter of in-place changes; an attrgetter, as it is called often


def changes_of(tensors: list[Any]) -> int:
    """Return the sum of the version counters of tensors."""
    return sum(map(changes, tensors))


def compiled(torch: Any, library: str) -> Any:
    """Load the compiled module beside the trail's library; it uses DLPack's exchange API where there is one."""
    module = load(library)
    if module is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        module.use_exchange(torch.Tensor)
    return module


def sparse_parts(tensor: Any) -> dict[str, Any]:
    """Return indices and values of a COO tensor, coalesced or not."""
    return {"indices": tensor._indices(), "values": tensor._values()}


def stored_values(tensor: Any) -> Any:
    """Return the tensor of stored values for any layout."""
    layout = str(tensor.layout).rpartition(".")[2]
    if layout == "sparse_coo":
        return tensor._values()
    return tensor.values() if layout.startswith("sparse") or layout == "jagged" else tensor


def is_opaque(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor's values are in memory that only oneDNN reads."""
    return bool(tensor.layout is torch._mkldnn)


def storage(tensor: Any) -> int:
    """Return the identity of the storage of a tensor's values; of a tensor without one, its own."""
    try:
        return stored_values(tensor).untyped_storage()._cdata  # type: ignore[no-any-return]
    except NotImplementedError:
        return int(tensor._cdata)


def flag_not_finite(torch: Any, tensors: Sequence[Any], flag: Any, unit_scale: Any) -> None:
    """Set the flag on the device if a tensor is not finite, without synchronizing; tensors stay unchanged."""
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, unit_scale)


def copy_each(torch: Any, into: list[Any], values: list[Any]) -> None:
    """Copy values into tensors of the same shapes, by one call if PyTorch has it (2.1)."""
    if into and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(into, values)
        return
    for tensor, value in zip(into, values):
        tensor.copy_(value)


def ranks_store(distributed: Any) -> Any:
    """Return the key-value store that the ranks of a training share."""
    return distributed.distributed_c10d._get_default_store()


def buckets(model: Any) -> dict[str, object]:
    """Return the gradient buckets of a DDP model: their sizes in bytes, and the order of the parameters."""
    facts = model._get_ddp_logging_data()
    names = {
        "buckets": "bucket_sizes",
        "rebuilt_buckets": "rebuilt_bucket_sizes",
        "order": "rebuilt_per_bucket_param_indices",
        "bucket_bytes": "bucket_cap_bytes",
        "hook": "comm_hook",
    }
    return {name: str(facts[key])[:MAX_FACT] for name, key in names.items() if facts.get(key) not in (None, "")}


def has_hook(module: Any) -> bool:
    """Return whether a module is DDP's, with a hook that communicates in place of it."""
    return type(module).__name__ == "DistributedDataParallel" and "hook" in buckets(module)


def without_other_ranks(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of modules in which those of DDP neither wait for other ranks nor expect a backward pass."""

    def alone(module: Any, *arguments: Any, **keywords: Any) -> Any:
        if type(module).__name__ != "DistributedDataParallel":
            return call(module, *arguments, **keywords)
        before = module.require_forward_param_sync, module.require_backward_grad_sync
        module.require_forward_param_sync = module.require_backward_grad_sync = False
        try:
            return call(module, *arguments, **keywords)
        finally:
            module.require_forward_param_sync, module.require_backward_grad_sync = before

    return alone


address = attrgetter("_cdata")  # the address of the C++ object of a generator
uses_cuda = attrgetter("cuda._initialized")  # whether this process has begun to use a GPU, of torch
process_groups = attrgetter("distributed.distributed_c10d._pg_map")  # of torch: empty where there is one process
containers = attrgetter("_parameters", "_buffers", "_modules")  # dicts of the module itself, without its children


def pins_batches(torch: Any, thread: Any) -> bool:
    """Return whether a thread of Python's is to pin the batches of a loader."""
    target = getattr(thread, "_target", None)
    return target is not None and target is torch.utils.data._utils.pin_memory._pin_memory_loop


def is_module(value: Any) -> bool:
    """Return whether a module has been initialized."""
    return "_modules" in vars(value)


def is_loss(module: Any) -> bool:
    """Return whether a module computes a loss."""
    return isinstance(module, sys.modules["torch"].nn.modules.loss._Loss)


def factor_of(loss: Any) -> float:
    """Return by what numbers a loss was multiplied in the end, as by a scale; 1.0 if by none."""
    node, factor = loss.grad_fn, 1.0
    for _ in range(MAX_SCALINGS):
        kind, others = type(node).__name__, [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
        below = [before for before, _ in getattr(node, "next_functions", ()) if before is not None]
        number = next((other for other in others if other is not None), None)
        if len(below) != 1 or number is None or number.numel() != 1 or kind[:11] not in ("MulBackward", "DivBackward"):
            break
        factor = factor * float(number) if kind[:3] == "Mul" else factor / float(number)
        node = below[0]
    return factor


def given_to_loss_function(loss: Any) -> tuple[str, Any, Any, Any] | None:
    """Return name, predictions, labels and class weights of the function that computed a loss, also of a scaled one."""
    node = loss.grad_fn
    for _ in range(MAX_SCALINGS):
        if hasattr(type(node), "_saved_target"):
            weights = [getattr(node, name, None) for name in ("_saved_pos_weight", "_saved_weight")]
            weight = next((weight for weight in weights if weight is not None), None)
            return type(node).__name__.partition("Backward")[0], node._saved_self, node._saved_target, weight
        below = [before for before, _ in getattr(node, "next_functions", ()) if before is not None]
        node = below[0] if len(below) == 1 else None
    return None


loader_iterator = attrgetter("_BaseDataLoaderIter")  # the class of the iterators of DataLoaders


class IndexQueue(deque):  # type: ignore[type-arg]
    """Indices whose batches have not come yet."""

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.popleft()


def watch_indices(module: Any, replace: Callable[..., None]) -> None:
    """Keep the indices chosen by samplers, which run ahead of the batches; record which worker made a batch."""
    base = module._BaseDataLoaderIter

    def make_begin(original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(iterator: Any, *arguments: Any, **keywords: Any) -> None:
            original(iterator, *arguments, **keywords)
            iterator._reprokit_indices = None
            if not getattr(iterator, "_in_order", True):
                return
            if type(iterator).__module__ == base.__module__:
                iterator._sampler_iter, iterator._reprokit_indices = tee(iterator._sampler_iter)
            else:  # it may ask its iterator for more than the next indices, as torchdata's does for its state
                replace(base, "_next_index", make_next_index)
                iterator._reprokit_indices = IndexQueue()

        return begin

    def make_next_index(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            indices, queue = original(iterator), iterator._reprokit_indices
            if isinstance(queue, IndexQueue):
                queue.append(indices)
            return indices

        return next_index

    replace(base, "__init__", make_begin)
    replace(base, "_reset", make_begin)
    _note_workers(module._MultiProcessingDataLoaderIter, replace)


def watch_workers(module: Any, replace: Callable[..., None]) -> None:
    """Record which worker made a batch of torchdata's loaders, whose iterators have their own code for that."""
    _note_workers(module._StatefulMultiProcessingDataLoaderIter, replace)


def _note_workers(iterators: Any, replace: Callable[..., None]) -> None:
    def make_process_data(original: Callable[..., Any]) -> Callable[..., Any]:
        def process_data(iterator: Any, data: Any, *worker: Any) -> Any:  # PyTorch before 2.6 passes no worker
            iterator._reprokit_worker = worker[0] if worker else None
            return original(iterator, data, *worker)

        return process_data

    replace(iterators, "_process_data", make_process_data)


def watch_unordered(module: Any, next_batch: Callable[..., Any], seconds: float) -> None:
    """Let a function choose the next batch of loaders with in_order=False.

    It gets the iterator, the number of the first missing batch, a function that waits for the next batch to arrive,
    and one that waits for at most `seconds`.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_data(iterator: Any) -> Any:
            # With no batch outstanding, the workers are asked whether they are ready for another epoch.
            if getattr(iterator, "_in_order", True) or not iterator._tasks_outstanding:
                return original(iterator)
            get, try_get = partial(original, iterator), partial(iterator._try_get_data, seconds)
            return next_batch(iterator, iterator._rcvd_idx, get, try_get)

        return get_data

    replace(module._MultiProcessingDataLoaderIter, "_get_data", make)


def sample_names(iterator: Any) -> list[Any] | None:
    """Return the names or indices of the samples of the last batch, if the reader of an IterableDataset tells them."""
    reader = getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)
    return reader and taken(reader)


def is_scaler_enabled(scaler: Any) -> bool:
    """Return whether a GradScaler is enabled."""
    return getattr(scaler, "_enabled", True)


def skips_by_itself(optimizer: Any) -> bool:
    """Return whether a fused optimizer checks for overflows on the device, so that its scaler always calls it."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def has_overflowed(optimizer: Any) -> bool:
    """Return whether the gradients of a fused optimizer, while its gradient scaler makes a step, are infinite."""
    return skips_by_itself(optimizer) and bool(getattr(optimizer, "found_inf", None))


def has_children(value: Any) -> bool:
    """Return whether a value is a module, or has the attributes of one."""
    return hasattr(value, "_modules")


def awaited(tensor: Any) -> Any:
    """Return the tensor itself; of one that a collective still computes, its result, after waiting for it."""
    return tensor.trigger_wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def schedule_classes(module: Any) -> list[type]:
    """Return the base classes of learning-rate schedules, whose initializers call no other."""
    names = "LRScheduler", "_LRScheduler", "ReduceLROnPlateau"
    return [getattr(module, name) for name in names if hasattr(module, name)]


# Entries in the state of a schedule that have no influence on the learning rate.
NOTES_OF_SCHEDULES = frozenset(["_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"])


def push_function_mode(torch: Any, mode: Any) -> None:
    """Activate a function mode for the rest of the process."""
    torch.overrides._push_mode(mode)


OLD_STEP_HOOK = "_hook_for_profile"  # the method by which PyTorch before 2.0 wraps the step of each optimizer's class


def never_compile(module: Any, code: Any) -> None:
    """Tell dynamo (torch._dynamo.eval_frame) not to compile this code."""
    module.skip_code(code)


def says_whether_it_compiles(torch: Any) -> bool:
    """Return whether torch.compiler has the flag that native/python/events.c looks at."""
    return "_is_compiling_flag" in vars(getattr(torch, "compiler", torch))


def compiling_context(module: Any) -> Any:
    """Return the class of which dynamo (torch._dynamo.eval_frame) makes an object when it is to compile something."""
    return module.OptimizeContext


def schema(operator: Any) -> Any:
    """Return the schema of an operator; None for higher-order operators."""
    return getattr(operator, "_schema", None)


def operator_name(operator: Any) -> str:
    """Return the name of an operator or overload packet, such as aten::add."""
    declaration = schema(operator)
    return str(declaration.name if declaration is not None else getattr(operator, "_qualified_op_name", ""))


def operator_names(torch: Any) -> set[str]:
    """Return the names of all operators, overloads included."""
    return set(torch._C._dispatch_get_all_op_names())


def has_kernel(torch: Any, name: str, key: str) -> bool:
    """Return whether an operator has its own kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)  # type: ignore[no-any-return]


def is_overridden(torch: Any, name: str, key: str) -> bool:
    """Return whether a Python torch.library has overridden an operator for a dispatch key."""
    return f"{name.replace('::', '/')}/{key}" in getattr(torch.library, "_impls", ())


remove_library = methodcaller("_destroy")  # reverts the overrides of a Python torch.library


def can_redispatch(torch: Any) -> bool:
    """Return whether an override can call the original operator (PyTorch 2.4)."""
    return hasattr(torch._ops.OpOverload, "redispatch")


def bits_of_keys(torch: Any) -> Callable[[Any], object]:
    """Return a function that converts a set of dispatch keys to a hashable value."""
    return getattr(torch._C.DispatchKeySet, "raw_repr", torch._C._dispatch_keyset_to_string)  # type: ignore[no-any-return]


def keys_below(torch: Any, keyset: Any) -> tuple[Any, bool, bool]:
    """Return the dispatch keys below BackendSelect; whether their kernel computes, and whether not on a CPU."""
    keys = torch._C.DispatchKey
    below = keyset & torch._C._dispatch_keyset_full_after(keys.BackendSelect)
    device = below.highestPriorityTypeId()
    return below, device != keys.Meta, device != keys.CPU


def deterministic_mode(torch: Any) -> tuple[bool, bool, bool]:
    """Return whether deterministic mode is on, whether it only warns, and whether it fills new memory."""
    core = torch._C
    fill = getattr(core, "_get_deterministic_fill_uninitialized_memory", lambda: False)()
    return core._get_deterministic_algorithms(), core._get_deterministic_algorithms_warn_only(), fill


def set_deterministic_mode(torch: Any, is_on: bool, warn_only: bool, fill: bool | None = None) -> None:
    """Set deterministic mode without importing Inductor, which takes a second. TypeError before PyTorch 1.11."""
    core = torch._C
    if fill is not None:
        getattr(core, "_set_deterministic_fill_uninitialized_memory", lambda _: None)(fill)
    core._set_deterministic_algorithms(is_on, warn_only=warn_only)


set_thread_count = attrgetter("_C.set_num_threads")  # what torch.set_num_threads calls


def cudnn_setter(torch: Any, name: str) -> tuple[Any, str]:
    """Return owner and name of the setter of a cuDNN switch."""
    return torch._C, "_set_cudnn_" + name


def tf32_setters(torch: Any) -> dict[str, tuple[Any, str]]:
    """Return owner and name of the setters that allow TF32, by setting."""
    return {
        "torch.backends.cuda.matmul.allow_tf32": (torch._C, "_set_cublas_allow_tf32"),
        "torch.backends.cudnn.allow_tf32": (torch._C, "_set_cudnn_allow_tf32"),
    }


# Settings that only private functions return: the public name, and the path of the function in torch.
READ_SETTINGS = {
    "torch.backends.cudnn.allow_tf32": "_C._get_cudnn_allow_tf32",
    "torch.backends.cuda.matmul.allow_tf32": "_C._get_cublas_allow_tf32",
    "torch.backends.mkldnn.enabled": "_C._get_mkldnn_enabled",
    "torch.backends.mkldnn.deterministic": "_C._get_mkldnn_deterministic",
}


def disable_graph_cache(torch: Any) -> None:
    """Turn off the graph cache of Inductor, so that it compiles each graph anew."""
    torch._inductor.config.fx_graph_cache = False


def sees_operators(torch: Any) -> bool:
    """Return whether a dispatch mode can see each operator (PyTorch 2.0)."""
    return hasattr(torch._C, "_len_torch_dispatch_stack") and hasattr(torch._C, "_get_dispatch_stack_at")


count_modes = attrgetter("_C._len_torch_dispatch_stack")  # a function: how many dispatch modes are active
mode_class = attrgetter("utils._python_dispatch.TorchDispatchMode")  # of torch


def push_mode(torch: Any, mode: Any) -> None:
    """Activate a dispatch mode. Not by `with`, whose flags are not per thread."""
    torch.utils._python_dispatch._push_mode(mode)


def pop_mode(torch: Any, mode: Any) -> None:
    """Deactivate a dispatch mode, unless another one is above it."""
    top = torch._C._len_torch_dispatch_stack() - 1
    if top >= 0 and torch._C._get_dispatch_stack_at(top) is mode:
        torch.utils._python_dispatch._pop_mode()


def own_classes(torch: Any) -> Callable[[Any], tuple[list[Any], bool]]:
    """Return a function that selects the classes with their own dispatch, and tells whether one is a tracer's."""
    disabled = torch._C._disabled_torch_dispatch_impl

    def own(types: Any) -> tuple[list[Any], bool]:
        dispatching = [type_ for type_ in types if type_.__torch_dispatch__ is not disabled]
        return dispatching, any(type_.__module__.startswith("torch._subclasses.") for type_ in dispatching)

    return own


def next_node(torch: Any) -> Callable[[], int]:
    """Return a function that returns the sequence number of this thread's next autograd node."""
    return getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None) or (lambda: 0)


def node_number(node: Any) -> Any:
    """Return the sequence number of an autograd node; None before PyTorch 2.1."""
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else number()


def tells_nodes(torch: Any) -> bool:
    """Return whether PyTorch tells which autograd node is being executed (2.1)."""
    return hasattr(torch._C, "_current_autograd_node")


def current_node(torch: Any) -> Callable[[], Any]:
    """Return a function that returns the autograd node being executed, or None."""
    return getattr(torch._C, "_current_autograd_node", None) or (lambda: None)


def loader_fetchers() -> list[Any]:
    """Return the classes by which a loader or its worker fetches a batch."""
    module = sys.modules.get("torch.utils.data._utils.fetch")
    classes = [getattr(module, name, None) for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher")]
    return [class_ for class_ in classes if class_ is not None]


def start_method(loader: Any) -> str | None:
    """Return the start method of a loader's workers, if one was chosen."""
    method = getattr(getattr(loader, "multiprocessing_context", None), "_name", None)
    return method if isinstance(method, str) else None
