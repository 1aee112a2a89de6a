"""The public class for snapshots in scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from reprokit.agent.capture import trees
from reprokit.agent.capture.header import in_words
from reprokit.agent.capture.store import SnapshotError, SnapshotFile
from reprokit.capture.arrays import TensorArrays
from reprokit.core.errors import BadSnapshot

MODULES = {"pytorch": "torch_fit", "tensorflow": "tensorflow_restore", "keras": "tensorflow_restore"}


class Snapshot:
    """The state of a training as it was at the start of a captured step."""

    def __init__(self, file: SnapshotFile) -> None:
        self._file = file
        self.header: Mapping[str, Any] = file.header  # snapshot.json, see docs/format.md
        self.tensors = TensorArrays(file.tensors)

    @property
    def path(self) -> str:
        """The directory of the snapshot."""
        return self._file.path

    @property
    def framework(self) -> str:
        """The framework: pytorch, tensorflow, keras or jax."""
        return self._file.facts.framework

    @property
    def step(self) -> int:
        """The number of steps that the optimizer had made before."""
        return self._file.facts.step

    @property
    def trigger(self) -> str:
        """Why the step was captured, as a text."""
        return in_words(self._file.facts.trigger)

    @property
    def batches(self) -> list[Any]:
        """The step's inputs in the structure that the script gave them, with NumPy arrays for tensors."""
        with self._reporting_damage("batches"):
            return [trees.unpack(batch["value"], self._leaf) for batch in self._file.facts.batches]

    @property
    def gradients(self) -> dict[str, Any]:
        """The gradients that were not finite, by parameter name."""
        with self._reporting_damage("gradients"):
            names = self._file.facts.gradients
            return {name: self.tensors[names[name]] for name in names}

    @property
    def losses(self) -> list[float]:
        """The last losses, up to the captured step's."""
        with self._reporting_damage("losses"):
            return [float.fromhex(text) for text in self._file.facts.losses]

    def restore(self, model: Any, optimizer: Any = None) -> list[str]:
        """Restore the state into a model and its optimizer, or a list of optimizers; return what could not be restored.

        A state that was captured on a GPU goes to the model's device. Random states are restored, too. Raises
        BadSnapshot if the model does not fit, with the tensor that differs.
        """
        from importlib import import_module

        if self.framework not in MODULES:
            raise BadSnapshot(f"{self.path} is of {self.framework}, of which nothing is restored: use its tensors")
        state = import_module(f"reprokit.agent.capture.{MODULES[self.framework]}")
        optimizers = [] if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        try:
            notes: list[str] = state.restore(self._file, model, list(optimizers))
        except SnapshotError as error:
            raise BadSnapshot(str(error)) from None
        return notes

    @contextmanager
    def _reporting_damage(self, attribute: str) -> Iterator[None]:
        """Raise BadSnapshot in place of errors that a malformed header causes."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise BadSnapshot(f"{self.path}: its {attribute} cannot be read: {type(error).__name__}: {error}") from None

    def _leaf(self, node: dict[str, Any]) -> Any:
        """Return a tensor as an array, strings as an object array, other nodes with arrays for their tensors."""
        ((kind, content),) = node.items()
        if kind in ("tensor", "array"):
            return self.tensors[content]
        if kind in ("strings", "bytestrings"):
            return _strings(content, kind)
        if kind == "replicas":
            return [trees.unpack(part, self._leaf) for part in content]
        return {kind: _with_arrays(content, self._leaf)}

    def __repr__(self) -> str:
        return f"<Snapshot of {self.framework}, step {self.step}: {self.trigger}>"


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Open a snapshot; raises BadSnapshot if it is damaged, altered, or no snapshot."""
    try:
        return Snapshot(SnapshotFile(os.fspath(path)))
    except SnapshotError as error:
        raise BadSnapshot(str(error)) from None


def _strings(content: Any, kind: str) -> Any:
    import numpy

    shape, values = content
    if kind == "bytestrings":
        values = [bytes.fromhex(value) for value in values]
    return numpy.array(values, dtype=object).reshape(shape)


def _with_arrays(content: Any, leaf: Any) -> Any:
    """Return the content of a framework's node, with arrays for the tensors in it."""
    if (
        isinstance(content, dict)
        and len(content) == 1
        and next(iter(content)) in ("array", "bytestrings", "strings", "tensor")
    ):
        return leaf(content)
    if isinstance(content, dict):
        return {key: _with_arrays(value, leaf) for key, value in content.items()}
    if isinstance(content, list):
        return [_with_arrays(value, leaf) for value in content]
    return content
