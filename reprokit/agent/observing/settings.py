"""Settings on which results depend: variables, switches of the frameworks, sizes of pools, parameters of boosters.

They are read at the end of the process; what a script sets by a function is also noted with its place.
"""

from __future__ import annotations

import os
import re
import sys

from ..compute_settings import VARIABLES, facts
from ..core.user_frames import where
from ..pytorch import private_api
from .call_watch import argument, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from . import Observer

MAX_SET = 500  # settings that scripts set, by place
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
_SIMPLE = re.compile(r"[\w.,=+:/ -]{0,300}")  # such values only: a variable may hold anything

# Of PyTorch: the name that users know, and the way to the value, which is called where it is a function.
_TORCH = {
    "torch.use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
    "torch.use_deterministic_algorithms.warn_only": "is_deterministic_algorithms_warn_only_enabled",
    "torch.utils.deterministic.fill_uninitialized_memory": "utils.deterministic.fill_uninitialized_memory",
    "torch.backends.cudnn.enabled": "backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark": "backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic": "backends.cudnn.deterministic",
    "torch.backends.cudnn.allow_tf32": "_C._get_cudnn_allow_tf32",
    "torch.backends.cuda.matmul.allow_tf32": "_C._get_cublas_allow_tf32",
    "torch.backends.mkldnn.enabled": "_C._get_mkldnn_enabled",
    "torch.backends.mkldnn.deterministic": "_C._get_mkldnn_deterministic",
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
_JAX = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")
_OF_XGBOOST = ("booster", "updater", "nthread", "n_jobs", "tree_method", "device", "feature_selector")
_OF_LIBRARIES = ("threads", "interop_threads", "core", "branch", "isa", "capability", "used")


class ObservedSettings:
    """The settings of this process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._set: dict[object, dict[str, Any]] = {}
        self._at_start = dict(_variables())
        observer.in_child(self._set.clear)

    def put(self, name: str, value: Any, source: str) -> None:
        """A setting as it is at the end."""
        self._observer.write("setting", name, {"name": name, "value": _plain(value), "where": source})

    def set_by_script(self, name: str, value: Any) -> None:
        """A setting that is set where the user's code is now."""
        places = where(2)
        key = (name, str(_plain(value)), tuple(places[:1]))
        line = self._set.get(key)
        if line is None and len(self._set) < MAX_SET:
            line = {"name": name, "value": _plain(value), "where": "set by script", "places": places, "calls": 0}
            self._set[key] = line
            self._observer.write("setting", key, line)
        if line is not None:
            line["calls"] += 1

    def read(self) -> None:
        """What there is at the end; a library that was not loaded has nothing."""
        for name, value in _variables():
            given = self._at_start.get(name) == value
            self.put(name, value, "environment" if given else "set by script")
        for library, read in _READERS.items():
            module = sys.modules.get(library)
            if module is not None:
                for name, value in self._observer.agent.attempt(lambda read=read, module=module: [*read(module)]) or ():
                    self.put(name, value, "read at end")
        if not _COMPUTING.isdisjoint(sys.modules):
            for name, _, found in facts():
                for fact in _OF_LIBRARIES:
                    if found.get(fact) is not None:
                        self.put(f"{name}.{fact}", found[fact], "read at end")


def begin(observer: Observer) -> None:
    """Note the variables that the process was given, and read all at its end."""
    settings = ObservedSettings(observer)
    observer.parts["settings"] = settings
    observer.at_end(settings.read)


def observe(module: ModuleType, observer: Observer) -> None:
    """A framework has been imported: see what scripts set in it."""
    _WATCHERS[module.__name__](module, observer, observer.parts["settings"])


def _variables() -> Iterator[tuple[str, str]]:
    for name in _VARIABLES:
        value = os.environ.get(name)
        if value is not None:
            yield name, value if _SIMPLE.fullmatch(value) else "(another value)"


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:50]]
    return str(value)[:MAX_TEXT]


# Reading


def _torch(torch: Any) -> Iterator[tuple[str, Any]]:
    for name, path in _TORCH.items():
        value = _ask(torch, path)
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
    if private_api.context() is not None:  # nothing is begun for it
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


def _ask(module: Any, path: str) -> Any:
    """What stands there, or what the function there answers; None where this version has none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module() if callable(module) else module


_READERS: dict[str, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "torch": _torch,
    "xgboost": _xgboost,
}
_COMPUTING = frozenset(["jax", "numpy", "tensorflow", "torch", "xgboost"])

# Setting


def _watch_torch(torch: Any, observer: Observer, settings: ObservedSettings) -> None:
    for function in _SET_IN_TORCH:
        _watch_setter(observer, settings, torch, function, f"torch.{function}", 0, "mode")
    for module in ("cudnn", "mkldnn", "miopen", "opt_einsum"):
        _watch_properties(observer, settings, f"torch.backends.{module}")
    for name, (owner, function) in private_api.tf32_setters(torch).items():
        _watch_setter(observer, settings, owner, function, name, 0, "")


def _watch_setter(
    observer: Observer, settings: ObservedSettings, owner: Any, function: str, name: str, position: int, keyword: str
) -> None:
    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        settings.set_by_script(name, argument(arguments, keywords, position, keyword))
        for key in keywords:
            if key != keyword:
                settings.set_by_script(f"{name}.{key}", keywords[key])

    watch(observer, owner, function, note)


def _watch_properties(observer: Observer, settings: ObservedSettings, module: str) -> None:
    """torch.backends' modules are objects, whose properties call a setter."""
    for name, found in list(vars(type(sys.modules.get(module))).items()):
        if type(found).__name__ == "ContextProp":

            def note(arguments: tuple[Any, ...], _: dict[str, Any], name: str = f"{module}.{name}") -> None:
                settings.set_by_script(name, arguments[0])

            watch_property(observer, found, note)


def watch_property(observer: Observer, found: Any, note: Callable[..., None]) -> None:
    """Have the setter of a property of torch.backends tell."""
    setter = found.setter
    if not callable(setter) or hasattr(setter, "_reprokit_watched"):
        return

    def watched(*arguments: Any) -> Any:
        if observer.collecting:
            observer.agent.attempt(note, arguments, {})
        return setter(*arguments)

    watched._reprokit_watched = True  # type: ignore[attr-defined]
    found.setter = watched


def _watch_tensorflow(_: Any, observer: Observer, settings: ObservedSettings) -> None:
    from ..tensorflow import private_api

    config = private_api.module("config")
    names = {
        "enable_op_determinism": "tf.config.experimental.enable_op_determinism",
        "enable_tensor_float_32_execution": "tf.config.experimental.enable_tensor_float_32_execution",
        "set_intra_op_parallelism_threads": "tf.config.threading.intra_op",
        "set_inter_op_parallelism_threads": "tf.config.threading.inter_op",
        "set_optimizer_jit": "tf.config.optimizer.jit",
    }
    for function, name in names.items():
        if config is not None and hasattr(config, function):
            _watch_public(observer, settings, config, function, name)


def _watch_public(observer: Observer, settings: ObservedSettings, config: Any, function: str, name: str) -> None:
    """The public modules have the function already: there too it is replaced."""
    original = getattr(config, function)
    is_switch = function == "enable_op_determinism"

    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = [*arguments, *keywords.values()]
        settings.set_by_script(name, True if is_switch else given[0] if given else None)

    watch(observer, config, function, note)
    for path in ("config.experimental", "config.threading", "config.optimizer"):
        for version in ("", "compat.v1.", "compat.v2."):
            public = _attribute(sys.modules.get("tensorflow"), version + path)
            for public_name, value in list(vars(public).items()) if public is not None else ():
                if value is original:
                    setattr(public, public_name, getattr(config, function))


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _watch_session(module: Any, observer: Observer, settings: ObservedSettings) -> None:
    """The sizes of the pools are given to the first session in TensorFlow 1."""

    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        config = argument(arguments, keywords, 3, "config")
        for kind in ("intra", "inter"):
            size = getattr(config, f"{kind}_op_parallelism_threads", None)
            if size:  # what Keras itself opens has none
                settings.set_by_script(f"tf.ConfigProto.{kind}_op_parallelism_threads", size)

    watch(observer, module.BaseSession, "__init__", note)


def _watch_xgboost(module: Any, observer: Observer, settings: ObservedSettings) -> None:
    def note(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = argument(arguments, keywords, 0, "params")
        pairs = dict(given) if given else {}
        for name in _OF_XGBOOST:
            if name in pairs:
                settings.set_by_script(f"xgboost.{name}", pairs[name])

    for function in ("train", "cv"):
        watch(observer, module, function, note)


_WATCHERS = {
    "tensorflow": _watch_tensorflow,
    "tensorflow.python.client.session": _watch_session,
    "torch": _watch_torch,
    "xgboost.training": _watch_xgboost,
}
