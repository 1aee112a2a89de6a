"""The state of a TensorFlow 1 training in a snapshot, and back into a session."""

from __future__ import annotations

import sys

from ..frameworks import variables as frameworks
from . import trees
from .reading import SnapshotError
from .tensorflow_state import NAMES, Taking, digest, distinct_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from . import Capture, Part
    from .reading import SnapshotFile
    from .tensorflow1_capture import Guard, Step


def library(capture: Capture) -> Any:
    """The library that copies random states; None where there is none."""
    path = getattr(capture.settings, "library", None)
    if not path:
        return None
    from ..trail import Library

    return capture.attempt(Library, path)


def _backend() -> Any:
    return sys.modules["tensorflow.python.keras.backend"]


def assign(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Set variables in Keras' session."""
    _backend().batch_set_value(list(pairs))


class Kept:
    """All variables of a model and its optimizer at one moment."""

    def __init__(self, model: Any) -> None:
        self._variables = model_variables(model) + optimizer_variables(model.optimizer)
        self._values = _backend().batch_get_value(self._variables)

    def put(self) -> None:
        """Go back to that moment."""
        assign(list(zip(self._variables, self._values)))  # noqa: B905


def model_variables(model: Any) -> list[Any]:
    """The variables of a model, each once."""
    return list({id(variable): variable for variable in model.weights}.values())


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer, also where it is one of tf.train, which Keras wraps."""
    inner = getattr(optimizer, "optimizer", None)
    if inner is None:
        return frameworks.optimizer_variables(optimizer)
    return [*inner.variables(), optimizer.iterations]


def _config(optimizer: Any) -> Any:
    try:
        return optimizer.get_config()
    except NotImplementedError:  # one of tf.train
        return {}


def contents(guard: Guard, step: Step, triggers: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Part]]:
    """Header and tensors of a step whose update did not happen."""
    taking, model = Taking(), guard.model
    taking.notes += [f"the random numbers of {name} could not be read" for name in guard.reads.unread]
    header = {
        "framework": "keras",
        "versions": _versions(),
        "step": guard.number - 1,
        "epoch": guard.owner.epoch,
        "steps_in_epoch": guard.owner.step_in_epoch,
        "trigger": triggers[0],
        "also": triggers[1:],
        "models": [_model(taking, model)],
        "optimizers": [_optimizer(taking, model.optimizer, guard.names())],
        "scalers": [],
        "schedules": [],
        "batches": [_batch(taking, guard, step)],
        "losses": [value.hex() for value in guard.losses],
        "random": _random(taking, guard, step),
        "gradients": taking.tensors("gradient.", guard.bad_gradients(step).items()),
        "gradient_digests": guard.digests(step),
        "loss": {"value": float(step.loss).hex(), "digest": digest(step.loss)},
        "precision": {},
        "notes": taking.notes,
    }
    return header, taking.parts


def _versions() -> dict[str, str]:
    modules: Any = sys.modules
    return {"tensorflow": str(modules["tensorflow"].__version__), "numpy": str(modules["numpy"].__version__)}


def _model(taking: Taking, model: Any) -> dict[str, Any]:
    tensors = _tensors(taking, "model.0.", model_variables(model))
    return {"name": "model#0", "class": model.__class__.__name__, "tensors": tensors, "training": {"": True}}


def _optimizer(taking: Taking, optimizer: Any, names: list[str]) -> dict[str, Any]:
    tensors = _tensors(taking, "optimizer.0.", optimizer_variables(optimizer))
    return {
        "name": "optimizer#0",
        "class": type(getattr(optimizer, "optimizer", optimizer)).__name__,
        "parameters": [names],
        "state": {"dict": [[{"text": name}, {"tensor": tensors[name]}] for name in tensors]},
        "groups": trees.pack(_config(optimizer), _number),
    }


def _tensors(taking: Taking, start: str, variables: list[Any]) -> dict[str, str]:
    named = zip(distinct_names(variables), _backend().batch_get_value(variables))  # noqa: B905
    return taking.tensors(start, named)


def _number(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return trees.pack(value.item(), _none) if hasattr(value, "item") and not getattr(value, "shape", ()) else None


def _none(_value: Any) -> None:
    return None


def _batch(taking: Taking, guard: Guard, step: Step) -> dict[str, Any]:
    arrays = {}
    for tensor, value in zip(guard.function.inputs, step.inputs):  # noqa: B905
        is_plain = value is None or isinstance(value, (bool, int)) or hasattr(value, "tocoo")
        arrays[tensor.name] = value if is_plain else sys.modules["numpy"].asarray(value)
    pairs = [[{"text": name}, taking.value(f"batch.0.{name}", arrays[name])] for name in arrays]
    samples = next((int(array.shape[0]) for array in arrays.values() if getattr(array, "shape", ())), 0)
    return {"from": "fit", "value": {"dict": pairs}, "sample_axis": 0, "samples": samples}


def _random(taking: Taking, guard: Guard, step: Step) -> dict[str, Any]:
    kept, found = guard.owner.random.kept(), {}
    if "python" in kept:
        version, words, gauss = kept["python"]
        words = sys.modules["numpy"].array(words, "uint32")
        found["python"] = taking.value("random.python", (version, words, gauss))
    if "numpy" in kept:
        found["numpy"] = taking.value("random.numpy", tuple(kept["numpy"]))
    drawn = {tensor.name: value for tensor, value in zip(guard.reads.random, step.random)}  # noqa: B905
    pairs = [[{"text": name}, taking.value(f"random.{name}", drawn[name])] for name in drawn]
    return {**found, "tensorflow": {"dict": pairs}}


# Back into a training


class Saved:
    """A snapshot of TensorFlow 1, as arrays."""

    def __init__(self, file: SnapshotFile) -> None:
        self._file = file
        self._header = file.header
        if not all(isinstance(self._header.get(key), list) for key in ("models", "optimizers", "batches")):
            raise SnapshotError("the snapshot has no lists of models, optimizers and batches")
        if len(self._header["batches"]) != 1 or len(self._header["models"]) != 1:
            raise SnapshotError("the snapshot is none of a step of Keras with TensorFlow 1")

    def _tensor(self, name: Any) -> Any:
        found = self._file.tensors.get(name) if isinstance(name, str) else None
        numpy = sys.modules["numpy"]
        if found is None or not hasattr(numpy, NAMES.get(found.dtype, "")):
            raise SnapshotError(f"the snapshot holds no tensor {str(name)[:100]!r} that TensorFlow 1 could take")
        return numpy.frombuffer(found.data, NAMES[found.dtype]).reshape(found.shape)

    def _value(self, node: Any) -> Any:
        try:
            return trees.unpack(node, self._leaf)
        except (trees.BadTree, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"a value of the snapshot cannot be read: {error}") from None

    def _leaf(self, node: Any) -> Any:
        if "tensor" in node:
            return self._tensor(node["tensor"])
        if "strings" in node:
            shape, texts = node["strings"]
            return sys.modules["numpy"].array(texts, "O").reshape(shape)
        raise SnapshotError(f"the snapshot leaves out a {str(next(iter(node.values())))[:100]}")

    def put(self, model: Any) -> None:
        """Give a model and its optimizer the state before the step."""
        kept = {name: self._tensor(tensor) for name, tensor in self._header["models"][0]["tensors"].items()}
        pairs = _fitting("the model", model_variables(model), kept)
        kept = self._value(self._header["optimizers"][0]["state"])
        assign(pairs + _fitting("the optimizer", optimizer_variables(model.optimizer), kept))
        self._put_random()

    def _put_random(self) -> None:
        """The generators of the process, from which functions on the host may draw."""
        kept = self._header.get("random") or {}
        if "python" in kept and "random" in sys.modules:
            version, words, gauss = self._value(kept["python"])
            sys.modules["random"].setstate((version, tuple(map(int, words)), gauss))
        if "numpy" in kept:
            sys.modules["numpy"].random.set_state(self._value(kept["numpy"]))

    def random(self) -> dict[str, Any]:
        """The random numbers that were drawn, by the tensors' names."""
        found: dict[str, Any] = self._value((self._header.get("random") or {}).get("tensorflow"))
        return found

    def batch(self) -> list[Any]:
        """The inputs of the step in their order."""
        return list(self._value(self._header["batches"][0]["value"]).values())

    @property
    def samples(self) -> int:
        """The size of the batch."""
        return int(self._header["batches"][0]["samples"])


def _fitting(whose: str, variables: list[Any], kept: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Each variable with its value; they must be the same ones."""
    there = dict(zip(distinct_names(variables), variables))  # noqa: B905
    for name in [*kept, *there]:
        if name not in there or name not in kept:
            missing, holder = ("the snapshot", whose) if name in there else (f"{whose} of the script", "the snapshot")
            raise SnapshotError(f"{missing} has no {name}, {holder} does: it is another model")
    for name, variable in there.items():
        here, then = [int(size) for size in variable.shape], list(kept[name].shape)
        if here != then:
            raise SnapshotError(f"{name} has the shape {here} in the script, {then} in the snapshot")
    return [(there[name], kept[name]) for name in there]


def part_of(arrays: Iterable[Any], samples: Sequence[int], of: int) -> list[Any]:
    """Of each array with so many rows only these."""
    chosen = list(samples)
    return [array[chosen] if getattr(array, "shape", ())[:1] == (of,) else array for array in arrays]
