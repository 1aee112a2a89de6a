"""Calls of PyTorch's operators: properties of operators, and signatures that distinguish their calls."""

from __future__ import annotations

from ..pytorch import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LISTED = 16  # tensors of a call, and items of a list, that are written
MAX_TEXT = 100
_UNINITIALIZED = ("aten::empty", "aten::new_empty", "aten::resize")
_READING = ("aten::lift_fresh", "aten::_unsafe_view", "aten::_local_scalar_dense", "aten::record_stream")
_MARKING = ("profiler::", "prim::", "debugprims::")
_NUMBER_FOR_TENSOR = "Expected a value of type 'Tensor' for argument"  # raised before the operator does anything
_OVERWRITE = frozenset(
    "copy fill zero normal uniform random bernoulli exponential geometric cauchy log_normal set _foreach_copy "
    "_foreach_zero".split()
)
_PLAIN = (bool, int, str, float, type(None))


class Operator:
    """The properties of an overload of an operator."""

    def __init__(self, function: Any) -> None:
        schema = private_api.schema(function)
        self.name: str = schema.name
        self.overload: str = schema.overload_name
        self.built_in = self.name.startswith("aten::")
        self.is_silent = _only_returns_views(function)
        self.is_uninitialized = self.name.startswith(_UNINITIALIZED)
        self.changes = any(_is_written(argument) for argument in schema.arguments)
        self.overwrites = self.changes and self.name.rpartition("::")[2].rstrip("_") in _OVERWRITE  # its first argument
        self.names = [argument.name for argument in schema.arguments]
        self.returns: list[str | None] = [None if _is_written(value) else value.name or "" for value in schema.returns]
        self._defaults = {
            argument.name: _plain(argument.default_value)
            for argument in schema.arguments
            if argument.has_default_value() and not _holds_tensors(argument)
        }

    def attributes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        """Return all arguments but tensors, by name, with defaults for those that the caller left out."""
        attributes = dict(self._defaults)
        for name, value in [*zip(self.names, args), *kwargs.items()]:
            if not _has_tensor(value):
                attributes[name] = _plain(value)
        return attributes


def _only_returns_views(function: Any) -> bool:
    """Return whether an operator computes nothing, but only returns views of its unchanged inputs."""
    schema = private_api.schema(function)
    if schema.name in _READING or schema.name.startswith(_MARKING):
        return True
    returns = [value.alias_info for value in schema.returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _holds_tensors(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _has_tensor(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(_has_tensor(item) for item in value)
    return hasattr(value, "data_ptr") and hasattr(value, "dtype")


def _plain(value: Any) -> object:
    """Return a value that JSON can represent."""
    if type(value) is str:
        return value[:MAX_TEXT]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:MAX_LISTED]]
    return str(value)[:MAX_TEXT] if type(value).__module__ == "torch" else type(value).__name__


def passed_on(torch: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute a call unchanged; if numbers, as TorchScript's constants, are rejected for tensors, convert them."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if _NUMBER_FOR_TENSOR not in str(error):
            raise
    return function(*with_tensors(torch, function, args), **kwargs)


def with_tensors(torch: Any, function: Any, args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with tensors, of matching dtypes, instead of numbers that stand for tensors."""
    converted = list(args)
    for number, (value, argument) in enumerate(zip(args, private_api.schema(function).arguments)):
        if isinstance(value, (bool, int, float, complex)) and str(argument.type) == "Tensor":
            dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}.get(type(value), torch.complex128)
            converted[number] = torch.tensor(value, dtype=dtype)
    return converted


class Signatures:
    """Distinguishes calls: by devices, dtypes and shapes of tensors, and by other arguments than numbers.

    Numbers are ignored: a learning rate or the start of a slice changes in each step.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._types = frozenset([bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device])
        self._cpu = torch.device("cpu")

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return device, dtypes, shapes, and other arguments of a call."""
        dtypes: list[Any] = []
        shapes: list[Any] = []
        others: list[Any] = []
        device = self._cpu
        tensor, other_types = self._tensor, self._types
        values: list[Any] = []
        for value in (*args, *kwargs.values()):
            if type(value) is list or type(value) is tuple:
                values += [item for item in value if isinstance(item, tensor)]
            else:
                values.append(value)
        for value in values:
            if isinstance(value, tensor):
                dtypes.append(value.dtype)
                shapes.append(value.shape if not value.is_nested else ())
                if not value.is_cpu:
                    device = value.device
            elif type(value) in other_types:
                others.append(value)
        if not dtypes:
            device = kwargs.get("device") or device
        return device, tuple(dtypes), tuple(shapes), tuple(others)


def described(signature: tuple[Any, ...]) -> dict[str, object]:
    """Return the fields of a line that describe the tensors of a call."""
    device, dtypes, shapes, _ = signature
    return {
        "device": str(getattr(device, "type", device)).partition(":")[0],
        "dtypes": [str(dtype).partition("torch.")[2] for dtype in dtypes[:MAX_LISTED]],
        "shapes": [list(shape) for shape in shapes[:MAX_LISTED]],
    }
