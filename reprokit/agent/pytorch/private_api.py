"""Every private name of PyTorch that the agent uses, once, with the versions in which it was seen.

Whoever needs one asks this module. Names that captures, observing and patches still use by themselves are listed all
the same: tests/agent/test_pytorch_private_api.py says what a new release lacks, and who uses a name that is not here.
"""

from __future__ import annotations

from ..compiled import load

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
    "torch.autograd.graph._engine_run_backward": "2.13",
    "torch.distributed.distributed_c10d._get_default_store": "2.13",
    "torch.library._impls": "2.13",
    "torch.nn.Module()._buffers": "2.13",
    "torch.nn.Module()._modules": "2.13",
    "torch.nn.Module()._parameters": "2.13",
    "torch.nn.modules.module._global_forward_pre_hooks": "2.13",
    "torch.optim.Optimizer._hook_for_profile": "until 1.13",
    "torch.optim.Optimizer.profile_hook_step": "2.13",
    "torch.optim.lr_scheduler._LRScheduler": "2.13",
    "torch.overrides._push_mode": "2.13",
    "torch.utils._python_dispatch._pop_mode": "2.13",
    "torch.utils._python_dispatch._push_mode": "2.13",
    "torch.utils.data.DataLoader._get_iterator": "2.13",
    "torch.utils.data._utils.fetch._IterableDatasetFetcher": "2.13",
    "torch.utils.data._utils.fetch._MapDatasetFetcher": "2.13",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "2.13",
}


def without_overrides(torch: Any) -> Any:
    """A context in which subclasses of tensors, and modes, do not see what is called."""
    return torch._C.DisableTorchFunction()


def is_in_engine(torch: Any) -> Callable[[], bool]:
    """A function that tells whether this thread is inside of a backward pass."""
    task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
    return (lambda: False) if task is None else lambda: task() != -1


def is_in_engine_or_traced(torch: Any) -> Callable[[], bool]:
    """A function that tells whether this thread is inside of a backward pass, or torch.jit traces what it does."""
    task, tracing = getattr(torch._C, "_current_graph_task_id", lambda: -1), torch._C._get_tracing_state
    return lambda: task() != -1 or tracing() is not None


def is_functorch_wrapped(torch: Any, tensor: Any) -> bool:
    """Whether a transform of functorch stands between this tensor and its numbers."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.is_functorch_wrapped_tensor(tensor)


def changes(tensor: Any) -> int:
    """How often the tensor was changed in place."""
    return tensor._version  # type: ignore[no-any-return]


def changes_each(tensors: Sequence[Any]) -> list[int]:
    """How often each of these was."""
    return [tensor._version for tensor in tensors]


def changes_of(tensors: list[Any]) -> int:
    """How often all of these were."""
    return sum([tensor._version for tensor in tensors])


def compiled(torch: Any, library: str) -> Any:
    """The compiled module beside the trail's library, to which DLPack's exchange describes tensors where it can."""
    module = load(library)
    if module is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        module.use_exchange(torch.Tensor)
    return module


def sparse_parts(tensor: Any) -> dict[str, Any]:
    """Indices and values of a sparse tensor in coordinates, coalesced or not."""
    return {"indices": tensor._indices(), "values": tensor._values()}


def address(generator: Any) -> int:
    """Where the object behind a generator lies."""
    return generator._cdata  # type: ignore[no-any-return]


def uses_cuda(torch: Any) -> bool:
    """Whether this process has begun to use a GPU."""
    return torch.cuda._initialized  # type: ignore[no-any-return]


def containers(module: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The parameters, buffers and children that the module itself has."""
    return module._parameters, module._buffers, module._modules


def is_module(value: Any) -> bool:
    """Whether it is a module that was initialized."""
    return "_modules" in vars(value)


def loader_iterator(module: Any) -> type:
    """The class of the iterators of DataLoaders."""
    return module._BaseDataLoaderIter  # type: ignore[no-any-return]


def old_step_hook() -> str:
    """The method by which PyTorch before 2.0 wraps the step of each optimizer's class."""
    return "_hook_for_profile"


def never_compile(module: Any, code: Any) -> None:
    """Have dynamo (torch._dynamo.eval_frame) leave this code as it is."""
    module.skip_code(code)
