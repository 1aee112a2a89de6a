"""A snapshot as a script sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from reprokit.agent.capture import trees
from reprokit.agent.capture.header import in_words
from reprokit.agent.capture.store import SnapshotError, SnapshotFile
from reprokit.capture.arrays import Arrays
from reprokit.errors import BadSnapshot

MODULES = {"pytorch": "torch_fit", "tensorflow": "tensorflow_restore", "keras": "tensorflow_restore"}


class Snapshot:
    """The state of a training as it was at the start of a captured step."""

    def __init__(self, file: SnapshotFile) -> None:
        self._file = file
        self.header: Mapping[str, Any] = file.header  # snapshot.json, see docs/format.md
        self.tensors = Arrays(file.tensors)

    @property
    def path(self) -> str:
        """Its directory."""
        return self._file.path

    @property
    def framework(self) -> str:
        """pytorch, tensorflow or keras."""
        return self._file.facts.framework

    @property
    def step(self) -> int:
        """How many steps the optimizer had made before."""
        return self._file.facts.step

    @property
    def trigger(self) -> str:
        """Why it was captured, in words."""
        return in_words(self._file.facts.trigger)

    @property
    def batches(self) -> list[Any]:
        """What went into the step, built as the script had it, with NumPy arrays for its tensors."""
        with self._told("batches"):
            return [trees.unpack(batch["value"], self._leaf) for batch in self._file.facts.batches]

    @property
    def gradients(self) -> dict[str, Any]:
        """The gradients that were not finite, by parameter."""
        with self._told("gradients"):
            found = self._file.facts.gradients
            return {name: self.tensors[found[name]] for name in found}

    @property
    def losses(self) -> list[float]:
        """The last losses, up to the captured step's."""
        with self._told("losses"):
            return [float.fromhex(text) for text in self._file.facts.losses]

    def restore(self, model: Any, optimizer: Any = None) -> list[str]:
        """Put the state into a model, and into its optimizer (or a list of them); returns what could not be put back.

        A state that was captured on a GPU goes to wherever the model lies. Random states are put back too. Raises
        BadSnapshot where the model is another one, with the tensor that does not fit.
        """
        from importlib import import_module

        if self.framework not in MODULES:
            raise BadSnapshot(f"{self.path} is of {self.framework}, which this reprokit does not know")
        state = import_module(f"reprokit.agent.capture.{MODULES[self.framework]}")
        optimizers = [] if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        try:
            notes: list[str] = state.restore(self._file, model, list(optimizers))
        except SnapshotError as error:
            raise BadSnapshot(str(error)) from None
        return notes

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn what comes of a header that is not what it should be into one line."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise BadSnapshot(f"{self.path}: its {what} cannot be read: {type(error).__name__}: {error}") from None

    def _leaf(self, node: dict[str, Any]) -> Any:
        """A tensor as an array; strings as an array of objects; of others the nodes with their tensors put in."""
        ((kind, content),) = node.items()
        if kind in ("tensor", "array"):
            return self.tensors[content]
        if kind in ("strings", "bytestrings"):
            return _strings(content, kind)
        if kind == "replicas":
            return [trees.unpack(part, self._leaf) for part in content]
        return {kind: _filled(content, self._leaf)}

    def __repr__(self) -> str:
        return f"<Snapshot of {self.framework}, step {self.step}: {self.trigger}>"


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Open a snapshot; raises BadSnapshot where it is damaged, altered or none."""
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


def _filled(content: Any, leaf: Any) -> Any:
    """Return what a node of a framework's holds, with arrays for the tensors in it."""
    if (
        isinstance(content, dict)
        and len(content) == 1
        and next(iter(content)) in ("array", "bytestrings", "strings", "tensor")
    ):
        return leaf(content)
    if isinstance(content, dict):
        return {key: _filled(value, leaf) for key, value in content.items()}
    if isinstance(content, list):
        return [_filled(value, leaf) for value in content]
    return content
