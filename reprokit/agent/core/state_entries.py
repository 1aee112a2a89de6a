"""The entries of a training's state: what a step starts from, by kind and name, and how each is put back.

Each framework lists its own in its module training_state; whoever saves, compares or restores a state walks the list.
"""

from __future__ import annotations

import enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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


# The kinds of generators' states, which are kept at several moments of a step, by their names in snapshots.
GENERATORS = {
    "torch": StateKind.TORCH.value,
    "torch.cuda": StateKind.CUDA.value,
    "python": StateKind.PYTHON.value,
    "numpy": StateKind.NUMPY.value,
    StateKind.LOADER.value: StateKind.LOADER.value,
}


class StateEntry:
    """One entry: its value may be a tensor, a number, or nested containers of them."""

    __slots__ = ("kind", "name", "put_back", "read")

    def __init__(self, kind: StateKind, name: str, read: Callable[[], Any], put_back: Callable[[Any], object]) -> None:
        self.kind, self.name = kind, name
        self.read = read  # returns the current value; it is no copy
        self.put_back = put_back  # restores a value that was read
