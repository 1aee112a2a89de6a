"""Writes the inputs of a step of JAX into a snapshot, and reads them back; finds outputs that are not finite."""

from __future__ import annotations

import sys

from ..core.digests import tensor_digest
from .header import GRADIENT, LOSS, PARAMETER, SnapshotHeader, Trigger
from .jax_calls import is_array
from .store import DTYPES, NAMES, Part, SnapshotError, free_name
from .tensorflow_state import bytes_of, is_float, numbers
from .trees import pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .jax_calls import JittedFunction, JitWatch, StepCall
    from .store import SnapshotFile
    from .trees import Node

KEY = "jax.random.key"  # the node of a key: its implementation, and its data
SCRIPT = "script"
MAX_TRIGGERS = 64


class FiniteTest:
    """Tests all floating-point outputs of a step by one compiled function."""

    def __init__(self, jit: Any) -> None:
        self._jit = jit
        self._test: Any = None
        self._is_float: dict[Any, bool] = {}  # by dtype

    def positions(self, leaves: Sequence[Any]) -> list[int]:
        """Return the positions of the arrays that are not finite."""
        floats = [n for n, leaf in enumerate(leaves) if self._has_non_finite_values(leaf)]
        if not floats:
            return []
        if self._test is None:
            jnp = sys.modules["jax"].numpy
            self._test = self._jit(lambda arrays: jnp.stack([jnp.isfinite(array).all() for array in arrays]))
        are_finite = sys.modules["numpy"].asarray(self._test([leaves[n] for n in floats]))
        return [] if are_finite.all() else [n for n, is_finite in zip(floats, are_finite) if not is_finite]

    def _has_non_finite_values(self, leaf: Any) -> bool:
        dtype = getattr(leaf, "dtype", None)  # isinstance would take longer than the test itself
        known = self._is_float.get(dtype)
        if known is None:
            jnp = sys.modules["jax"].numpy
            known = self._is_float[dtype] = is_array(leaf) and bool(jnp.issubdtype(dtype, jnp.inexact))
        return known


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is an array of typed keys for random numbers."""
    jax: Any = sys.modules["jax"]
    return is_array(leaf) and bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def as_array(leaf: Any) -> Any:
    """Return an array or keys as a NumPy array, without a copy where it is in host memory."""
    return sys.modules["numpy"].asarray(sys.modules["jax"].random.key_data(leaf) if is_key(leaf) else leaf)


def has_values(leaf: Any) -> bool:
    """Return whether a leaf is an array of JAX or NumPy."""
    return is_array(leaf) or isinstance(leaf, (sys.modules["numpy"].ndarray, sys.modules["numpy"].generic))


def digest(leaf: Any) -> str:
    """Return the digest of an array's bits."""
    array = as_array(leaf)
    return tensor_digest(array.dtype.name, [int(size) for size in array.shape], bytes_of(array))


def non_finite_count(leaf: Any) -> tuple[int, int, int]:
    """Return how many elements of an array are not finite, how many of these are NaN, and how many it has."""
    numpy, array = sys.modules["numpy"], as_array(leaf)
    if not is_float(array):
        return 0, 0, int(array.size)
    values = numbers(array)
    return int((~numpy.isfinite(values)).sum()), int(numpy.isnan(values).sum()), int(array.size)


# Which outputs that are not finite began in the step


def triggers(step: StepCall, positions: Sequence[int], watch: JitWatch) -> list[Trigger]:
    """Return triggers for the outputs at these positions that went wrong in this step: a loss, gradients, new states.

    What was not finite before did not begin here, and what is neither may well be NaN, as a metric of nothing is.
    """
    roles = watch.roles(step)
    losses = [n for n, (kind, _) in roles.items() if kind == LOSS] or _only_scalar(step)
    found = [_trigger(step, n, roles.get(n, (LOSS if n in losses else "", ""))) for n in positions]
    ordered = sorted([trigger for trigger in found if trigger is not None], key=lambda trigger: trigger.kind != LOSS)
    return ordered[:MAX_TRIGGERS]


def _only_scalar(step: StepCall) -> list[int]:
    """Return the position of the output that must be the loss, as there is no other floating-point number."""
    scalars = [
        n for n, (_, leaf) in enumerate(step.outputs) if is_array(leaf) and leaf.shape == () and not is_key(leaf)
    ]
    scalars = [n for n in scalars if is_float(as_array(step.outputs[n][1])) and step.source_of(n) is None]
    return scalars if len(scalars) == 1 else []


def _trigger(step: StepCall, position: int, role: tuple[str, str]) -> Trigger | None:
    name, leaf = step.outputs[position]
    kind, path = role
    count, nans, size = non_finite_count(leaf)
    if kind == LOSS:
        return Trigger(LOSS, str(float(as_array(leaf))) if size == 1 else "not finite", name=name, place=position)
    source = step.source_of(position)
    if kind == GRADIENT:
        name = path or name if source is None else step.inputs[source[0]][0]
        return Trigger(GRADIENT, "not finite", name=name, count=count, of=size, place=position)
    if source is None:
        return None
    number, is_certain = source
    input_name, before = step.inputs[number]
    if (has_values(before) and non_finite_count(before)[0]) or not (nans or is_certain):
        return None
    name = name if name.count(".") + name.count("['") > input_name.count(".") + input_name.count("['") else input_name
    return Trigger(PARAMETER, "not finite", name=name, count=count, of=size, place=position)


def seen_again(captured: Sequence[Trigger], outputs: Sequence[tuple[str, Any]]) -> list[Trigger]:
    """Return the captured triggers whose outputs are not finite in another execution, with its numbers."""
    again = []
    for trigger in captured:
        if trigger.place is not None and trigger.place < len(outputs) and has_values(outputs[trigger.place][1]):
            leaf = outputs[trigger.place][1]
            count, _, size = non_finite_count(leaf)
            changes: dict[str, Any] = {"what": str(float(as_array(leaf)))} if trigger.kind == LOSS and size == 1 else {}
            if trigger.kind != LOSS:
                changes = {"count": count, "of": size}
            again += [trigger.with_(**changes)] if count else []
    return again


# Snapshots


class StepContents:
    """Builds the header and the tensors of a snapshot from a step's inputs."""

    def __init__(self, step: StepCall) -> None:
        self._step = step
        self._taken: set[str] = set()
        self.parts: list[Part] = []
        self._notes: list[str] = []

    def header(self, found: Sequence[Trigger]) -> SnapshotHeader:
        """Return the header of a snapshot for these triggers."""
        step, jitted = self._step, self._step.jitted
        sources = [step.source_of(position) for position in range(len(step.outputs))]
        of_state = {source[0] for source in sources if source is not None and source[1]}
        state, rest, weak = {}, [], []
        for number, (name, leaf) in enumerate(step.inputs):
            if getattr(leaf, "weak_type", False):
                weak.append(name)
            key = (
                self._tensor(f"state.{name}", leaf)
                if number in of_state and has_values(leaf) and not is_key(leaf)
                else None
            )
            if key is not None:
                state[name] = key
            else:
                rest.append([{"text": name}, self._node(name, leaf)])
        outputs = {name: leaf for name, leaf in step.outputs if has_values(leaf)}
        bad = {name: leaf for name, leaf in outputs.items() if not is_key(leaf) and non_finite_count(leaf)[0]}
        kept = {name: self._tensor(f"output.{name}", leaf) for name, leaf in bad.items()}
        model = {"name": "model#0", "class": jitted.name, "tensors": state, "weak_types": weak}
        return SnapshotHeader(
            framework="jax",
            step=step.number,
            trigger=found[0],
            also=tuple(found[1:]),
            models=(model,),
            batches=({"from": SCRIPT, "name": jitted.name, "value": {"dict": rest}, "samples": None},),
            loss=_loss(step, found),
            gradients={name: key for name, key in kept.items() if key is not None},
            gradient_digests={name: digest(leaf) for name, leaf in outputs.items()},
            environment=_environment(),
            notes=tuple(self._notes),
        )

    def _tensor(self, preferred: str, leaf: Any) -> str | None:
        array = as_array(leaf)
        dtype = DTYPES.get(array.dtype.name)
        if dtype is None:
            self._notes.append(f"{preferred} is not in the snapshot: its data type is {array.dtype.name}")
            return None
        name = free_name(preferred, self._taken)
        self.parts.append(Part(name, dtype, array.shape, array.nbytes, lambda: bytes_of(array)))
        return name

    def _node(self, name: str, leaf: Any) -> Node:
        if is_key(leaf):
            implementation = str(sys.modules["jax"].random.key_impl(leaf))
            data = self._tensor(f"input.{name}", leaf)
            return {"named": [KEY, [["impl", {"text": implementation}], ["data", {"tensor": data}]]]}
        return pack(leaf, lambda value: self._leaf(name, value))

    def _leaf(self, name: str, value: Any) -> Node | None:
        key = self._tensor(f"input.{name}", value) if has_values(value) else None
        return None if key is None else {"tensor": key}


def _loss(step: StepCall, found: Sequence[Trigger]) -> dict[str, Any] | None:
    place = next((trigger.place for trigger in found if trigger.kind == LOSS), None)
    if place is None:
        return None
    leaf = step.outputs[place][1]
    value = float(as_array(leaf)).hex() if leaf.size == 1 else None
    return {"value": value, "digest": digest(leaf)}


def _environment() -> dict[str, Any]:
    jax: Any = sys.modules["jax"]
    return {
        "devices": [str(device.device_kind) for device in jax.local_devices()],
        "jax_enable_x64": bool(jax.config.jax_enable_x64),
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),
    }


# Their state in another process


def restored_inputs(file: SnapshotFile, step: StepCall) -> tuple[list[Any], list[str]]:
    """Return the snapshot's inputs in the order of this step's, and notes; raises SnapshotError if they do not fit."""
    facts, notes = file.facts, []
    model = facts.models[0] if facts.models else {}
    tensors, weak = model.get("tensors"), model.get("weak_types")
    nodes = {name: {"tensor": key} for name, key in tensors.items()} if isinstance(tensors, dict) else {}
    value = facts.batches[0].get("value") if facts.batches else None
    for pair in value.get("dict", []) if isinstance(value, dict) else []:
        nodes[str(pair[0].get("text"))] = pair[1]
    names = [name for name, _ in step.inputs]
    if set(names) != set(nodes):
        other = sorted(set(names) ^ set(nodes))[0]
        whose = "the script's step has" if other in names else "the snapshot has"
        raise SnapshotError(f"{whose} {other[:100]} among its inputs, and the other has not: it is another step")
    leaves = []
    for name, like in step.inputs:
        is_weak = isinstance(weak, list) and name in weak
        leaf = unpack(nodes[name], lambda node, like=like, is_weak=is_weak: _leaf(file, node, like, is_weak), like)  # type: ignore[misc]
        if nodes[name].get("named"):
            leaf = _key(file, leaf)
        if bool(getattr(leaf, "weak_type", is_weak)) != is_weak:
            notes.append(f"{name} has a weak type only in one of snapshot and script, which may promote other types")
        leaves.append(leaf)
    return leaves, notes


def _leaf(file: SnapshotFile, node: Mapping[str, Any], like: Any, is_weak: bool) -> Any:
    jax: Any = sys.modules["jax"]
    array = _array(file, node.get("tensor"))
    if is_weak and array.shape == () and is_array(like):
        return jax.numpy.asarray(array.item())
    return jax.device_put(array, like.sharding) if is_array(like) else array


def _array(file: SnapshotFile, key: Any) -> Any:
    tensor = file.tensors.get(key) if isinstance(key, str) else None
    if tensor is None:
        raise SnapshotError("the snapshot lacks a tensor of the step's inputs")
    numpy = sys.modules["numpy"]
    return numpy.frombuffer(tensor.data, dtype=numpy.dtype(NAMES[tensor.dtype])).reshape(tensor.shape).copy()


def _key(file: SnapshotFile, fields: Any) -> Any:
    return sys.modules["jax"].random.wrap_key_data(fields.data, impl=fields.impl)


def step_with(jitted: JittedFunction, step: StepCall, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a call's arguments and keywords with these leaves in place of its own."""
    tree = sys.modules["jax"].tree_util
    structure = tree.tree_structure(jitted.dynamic(step.arguments, step.keywords))
    return jitted.merged(step.arguments, step.keywords, structure.unflatten(list(leaves)))
