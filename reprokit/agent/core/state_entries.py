"""The entries of a training's state: what a step starts from, by kind and name, and how each is put back.

Each framework lists its own in its module training_state; whoever saves, compares or restores a state walks the list.
"""

from __future__ import annotations

import enum
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


class StateKind(str, enum.Enum):
    """The kinds of state, by the names that they have in files."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    OTHERS = "other-models"  # tensors of models that no optimizer trains
    METRICS = "metrics"
    GRADIENTS = "gradients"
    MODULES = "module-settings"  # plain numbers that models keep
    OPTIMIZER = "optimizer"
    SETTINGS = "settings"  # of optimizers
    SCHEDULE = "schedule"
    SCALER = "scaler"
    SEEDS = "seed generators of Keras"
    TORCH = "PyTorch generator"
    CUDA = "GPU generators"
    PYTHON = "Python generator"
    NUMPY = "NumPy generator"
    TENSORFLOW = "TensorFlow generator"
    LOADER = "loader-generator"
    VARIABLES = "variables"  # of the script
    DATA = "data"  # what its loaders return

    def __str__(self) -> str:
        return self.value


_PACKAGES = {"mtrand": "numpy"}  # of modules by the names that they had: before NumPy 1.17
_WITH_STATE = frozenset([("numpy", "RandomState"), ("torch", "Generator")])
_USUAL = frozenset(["MT19937", "NoneType"])  # bit generators of NumPy that RandomState reports without a warning


class StateEntry:
    """One entry: its value may be a tensor, a number, or nested containers of them."""

    __slots__ = ("kind", "name", "put_back", "read")

    def __init__(self, kind: StateKind, name: str, read: Callable[[], Any], put_back: Callable[[Any], object]) -> None:
        self.kind, self.name = kind, name
        self.read = read  # returns the current value; it is no copy
        self.put_back = put_back  # restores a value that was read


def values_of(entries: Iterable[StateEntry]) -> dict[str, Any]:
    """Return the current values of entries by name, without those that have none."""
    return {name: value for name, value in [(entry.name, entry.read()) for entry in entries] if value is not None}


def put_back(entries: Iterable[StateEntry], saved: Mapping[str, Any], value_of: Callable[[Any], Any]) -> None:
    """Restore the entries of which something was saved, which ``value_of`` makes a value again."""
    for entry in entries:
        if saved.get(entry.name) is not None:
            entry.put_back(value_of(saved[entry.name]))


def generator_entry(kind: StateKind, name: str, generator: Any) -> StateEntry:
    """Return the entry of a generator."""
    return StateEntry(kind, name, partial(generator_state, generator), partial(put_generator, generator))


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of Python, NumPy or PyTorch; None of anything else, as of a subclass."""
    kind = type(generator)
    family = _PACKAGES.get(kind.__module__) or kind.__module__.partition(".")[0], kind.__name__
    if family == ("random", "Random"):
        return generator.getstate()
    if family == ("numpy", "Generator"):
        return generator.bit_generator.state
    if family == ("numpy", "RandomState") and type(getattr(generator, "_bit_generator", None)).__name__ not in _USUAL:
        return generator.get_state(legacy=False)
    return generator.get_state() if family in _WITH_STATE else None


def put_generator(generator: Any, state: Any) -> None:
    """Restore the state that generator_state() returned, or one with arrays and lists in it as files have them."""
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        version, words, following = state
        generator.setstate((version, tuple(map(int, words)), following))
    else:
        generator.set_state(state)
