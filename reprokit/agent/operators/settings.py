"""Observes settings on which results depend: variables, framework switches, pool sizes, parameters of boosters.

They are read at the end of the process; settings made by function calls are also recorded with their place.
"""

from __future__ import annotations

import os
import re
import sys

from ..pytorch import private_api
from ..surroundings.compute_settings import VARIABLES, ask, facts
from .library_calls import argument, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from . import Observer

MAX_TEXT = 300

_VARIABLES = (
    *VARIABLES,
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "HOROVOD_FUSION_THRESHOLD",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    "JAX_PLATFORMS",
    "KERAS_BACKEND",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_SCHEDULE",
    "PYTHONHASHSEED",
    "TF_CUDNN_DETERMINISTIC",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_DETERMINISTIC_OPS",
    "TF_DISABLE_SEGMENT_REDUCTION_OP_DETERMINISM_EXCEPTIONS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_XLA_FLAGS",
    "TORCHINDUCTOR_DETERMINISTIC",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_DETERMINISTIC",
    "XLA_FLAGS",
)
_SIMPLE = re.compile(r"[\w.,=+:/ -]{0,300}")  # other values are not written, as a variable may hold anything

# Of PyTorch: the public name, and the path to the value, which is called if it is a function.
_TORCH = {
    "torch.use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
    "torch.use_deterministic_algorithms.warn_only": "is_deterministic_algorithms_warn_only_enabled",
    "torch.utils.deterministic.fill_uninitialized_memory": "utils.deterministic.fill_uninitialized_memory",
    "torch.backends.cudnn.enabled": "backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark": "backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic": "backends.cudnn.deterministic",
    **private_api.READ_SETTINGS,
    "torch.get_float32_matmul_precision": "get_float32_matmul_precision",
    "torch.get_num_threads": "get_num_threads",
    "torch.get_num_interop_threads": "get_num_interop_threads",
    "torch.get_default_dtype": "get_default_dtype",
    "torch.backends.cpu.get_cpu_capability": "backends.cpu.get_cpu_capability",
}
_INDUCTOR = ("deterministic", "max_autotune", "max_autotune_gemm", "coordinate_descent_tuning", "fallback_random")
_SET_IN_TORCH = (
    "use_deterministic_algorithms",
    "set_deterministic_debug_mode",
    "set_num_threads",
    "set_num_interop_threads",
    "set_float32_matmul_precision",
    "set_flush_denormal",
)
_SET_IN_TENSORFLOW = {
    "enable_op_determinism": "tf.config.experimental.enable_op_determinism",
    "enable_tensor_float_32_execution": "tf.config.experimental.enable_tensor_float_32_execution",
    "set_intra_op_parallelism_threads": "tf.config.threading.intra_op",
    "set_inter_op_parallelism_threads": "tf.config.threading.inter_op",
    "set_optimizer_jit": "tf.config.optimizer.jit",
}
_JAX = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")
_OF_XGBOOST = ("booster", "updater", "nthread", "n_jobs", "tree_method", "device", "feature_selector")
_OF_LIBRARIES = ("threads", "interop_threads", "core", "branch", "isa", "capability", "used")


class ObservedSettings:
    """The settings at the end of this process, of the libraries that were loaded."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._at_start = dict(_variables())
        observer.callbacks.at_end.append(self.read)

    def read(self) -> None:
        """Read and write all settings."""
        for name, value in _variables():
            is_unchanged = self._at_start.get(name) == value
            self._put(name, value, "environment" if is_unchanged else "set by script")
        for library, read in _READERS.items():
            module = sys.modules.get(library)
            if module is not None:
                for name, value in self._observer.agent.attempt(lambda read=read, module=module: [*read(module)]) or ():
                    self._put(name, value)
        if not _COMPUTING.isdisjoint(sys.modules):
            for name, _, library_facts in facts():
                for fact in _OF_LIBRARIES:
                    if library_facts.get(fact) is not None:
                        self._put(f"{name}.{fact}", library_facts[fact])

    def _put(self, name: str, value: Any, source: str = "read at end") -> None:
        self._observer.write("setting", name, {"name": name, "value": _plain(value), "where": source})


def _variables() -> Iterator[tuple[str, str]]:
    for name in _VARIABLES:
        value = os.environ.get(name)
        if value is not None:
            yield name, value if _SIMPLE.fullmatch(value) else "(another value)"


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:50]]
    return str(value)[:MAX_TEXT]


# Reading


def _torch(torch: Any) -> Iterator[tuple[str, Any]]:
    for name, path in _TORCH.items():
        value = ask(torch, path)
        if value is not None:
            yield name, value
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield "torch.distributed.backend", distributed.get_backend()
        yield "torch.distributed.world_size", distributed.get_world_size()
    inductor = sys.modules.get("torch._inductor.config")
    for name in _INDUCTOR if inductor is not None else ():
        yield f"torch._inductor.config.{name}", getattr(inductor, name, None)


def _tensorflow(_: Any) -> Iterator[tuple[str, Any]]:
    from ..tensorflow import private_api

    config = private_api.module("config")
    if hasattr(config, "is_op_determinism_enabled"):
        yield "tf.config.experimental.enable_op_determinism", config.is_op_determinism_enabled()
    if hasattr(config, "tensor_float_32_execution_enabled"):
        yield "tf.config.experimental.enable_tensor_float_32_execution", config.tensor_float_32_execution_enabled()
    if private_api.context() is not None:  # not initialized just to read settings
        yield "tf.config.threading.intra_op", private_api.pool_size("intra")
        yield "tf.config.threading.inter_op", private_api.pool_size("inter")
        yield "tf.config.optimizer.jit", private_api.compiles_graphs()
    policy = private_api.module("keras_policy")
    if policy is not None:
        yield "keras.config.dtype_policy", getattr(policy.dtype_policy(), "name", None)


def _jax(jax: Any) -> Iterator[tuple[str, Any]]:
    for name in _JAX:
        value = getattr(jax.config, name, None)
        if value is not None:
            yield f"jax.config.{name}", value


def _xgboost(xgboost: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(xgboost, "get_config"):
        for name, value in xgboost.get_config().items():
            yield f"xgboost.config.{name}", value


_READERS: dict[str, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "torch": _torch,
    "xgboost": _xgboost,
}
_COMPUTING = frozenset(["jax", "numpy", "tensorflow", "torch", "xgboost"])

# Setting


def _set_by_script(observer: Observer, name: str, value: Any) -> None:
    """Count a setting made at the current place in the user's code."""
    observer.count("setting", name, {"value": _plain(value), "where": "set by script"}, places_are="places")


def _watch_setter(observer: Observer, owner: Any, function: str, name: str) -> None:
    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        _set_by_script(observer, name, argument(arguments, keywords, 0, "mode"))
        for key in keywords:
            if key != "mode":
                _set_by_script(observer, f"{name}.{key}", keywords[key])

    watch(observer, owner, function, note)


def observe_torch(torch: Any, observer: Observer) -> None:
    """Observe settings that scripts make in PyTorch."""
    for function in _SET_IN_TORCH:
        _watch_setter(observer, torch, function, f"torch.{function}")
    for module in ("cudnn", "mkldnn", "miopen", "opt_einsum"):
        for name, setting in list(vars(type(sys.modules.get(f"torch.backends.{module}"))).items()):
            if type(setting).__name__ == "ContextProp":  # these modules are objects with properties that call a setter
                _watch_setter(observer, setting, "setter", f"torch.backends.{module}.{name}")
    for name, (owner, function) in private_api.tf32_setters(torch).items():
        _watch_setter(observer, owner, function, name)


def observe_tensorflow(tensorflow: Any, observer: Observer) -> None:
    """Observe settings made in TensorFlow; its public modules hold copies of the functions, which are replaced too."""
    from ..tensorflow import private_api

    config = private_api.module("config")
    for function, name in _SET_IN_TENSORFLOW.items():
        original = getattr(config, function, None)
        if original is None:
            continue
        is_switch = function == "enable_op_determinism"

        def note(arguments: Any, keywords: Any, name: str = name, is_switch: bool = is_switch) -> None:
            values = [*arguments, *keywords.values()]
            _set_by_script(observer, name, True if is_switch else values[0] if values else None)

        watch(observer, config, function, note)
        for path in ("config.experimental", "config.threading", "config.optimizer"):
            for version in ("", "compat.v1.", "compat.v2."):
                public = ask(tensorflow, version + path)
                for public_name, value in list(vars(public).items()) if public is not None else ():
                    if value is original:
                        setattr(public, public_name, getattr(config, function))


def observe_sessions(module: Any, observer: Observer) -> None:
    """Observe the pool sizes in TensorFlow 1, which are passed to sessions."""

    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        config = argument(arguments, keywords, 3, "config")
        for kind in ("intra", "inter"):
            size = getattr(config, f"{kind}_op_parallelism_threads", None)
            if size:  # sessions that Keras opens have none
                _set_by_script(observer, f"tf.ConfigProto.{kind}_op_parallelism_threads", size)

    watch(observer, module.BaseSession, "__init__", note)


def observe_xgboost(module: Any, observer: Observer) -> None:
    """Observe the parameters of XGBoost's boosters."""

    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        params = argument(arguments, keywords, 0, "params")
        pairs = dict(params) if params else {}
        for name in _OF_XGBOOST:
            if name in pairs:
                _set_by_script(observer, f"xgboost.{name}", pairs[name])

    for function in ("train", "cv"):
        watch(observer, module, function, note)
