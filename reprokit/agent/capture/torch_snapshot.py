"""Collects the contents of a snapshot of a PyTorch training."""

from __future__ import annotations

import sys

from ..pytorch import private_api
from ..pytorch.tensor_names import TensorNames, module_name, parameters_of
from ..pytorch.tensors import has_memory, is_nested, is_plain, is_tensor
from .header import SnapshotHeader, Trigger
from .torch_batches import BatchRecord
from .torch_finite import FiniteTests, values_of
from .torch_state import (
    SnapshotTensors,
    as_dense_cpu,
    digest,
    leaf,
    take_all,
    take_model,
    take_optimizer,
    take_random,
)
from .trees import child_nodes, leaf_contents, pack
from .variables import loop_counters, variables_with_samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .store import Part
    from .torch_steps import TrainingStep, WatchedObjects
    from .trees import Node

SHARDS = "parameters, gradients and the optimizer's state are this rank's shards"
MAX_CLASSES = 5  # classes of values that are left out, that are named in a note
MAX_COMPARED = 1 << 28  # bytes of a tensor that is compared with another


class SnapshotBuilder:
    """Builds the header and tensors of a snapshot from the saved start of a step."""

    def __init__(self, torch: Any, tests: FiniteTests, watched: WatchedObjects) -> None:
        self._torch = torch
        self._tests = tests
        self._watched = watched

    def contents(
        self, step: TrainingStep, models: list[Any], names: TensorNames, number: int, triggers: list[Trigger]
    ) -> tuple[SnapshotHeader, list[Part]]:
        """Return the header and the tensors of a snapshot of the start of this step."""
        tensors = SnapshotTensors()
        state, epoch = self._training_state(tensors, models, names, step), step.start.epoch
        batches = tuple(self._batches(tensors, step, models))
        is_updated = step.start.update_random is not None and not step.batches.are_loaded
        after_update = step.start.update_random() if step.start.update_random is not None and is_updated else {}
        header = SnapshotHeader(
            framework="pytorch",
            step=number,
            epoch=None if epoch is None else epoch.number,
            steps_in_epoch=None if epoch is None else epoch.steps,
            trigger=triggers[0],
            also=tuple(triggers[1:]),
            batches=batches,
            loops=loop_counters(sys._getframe(1)) if _are_of_script([batch["from"] for batch in batches]) else {},
            losses=tuple([loss.hex() for loss in map(float, step.losses.recent)]),
            loss=_loss(self._torch, step),
            random=take_random(tensors, step.start.random.kept()) if step.start.has_random else {},
            random_after_update=take_random(tensors, after_update, "random_after_update"),
            environment=self._environment(),
            sharded=tensors.has_shards or any(map(_is_sharded, models)),
            **state,
            **self._gradients_of(tensors, names),
        )
        notes = [*tensors.notes, *left_out_of(batches), *_notes(step), *[SHARDS] * header.sharded]
        return header.with_(notes=tuple(notes)), tensors.parts

    def _training_state(
        self, tensors: SnapshotTensors, models: list[Any], names: TensorNames, step: TrainingStep
    ) -> dict[str, Any]:
        replaced = step.buffers.kept() if step.buffers.is_kept else {}
        optimizers = [record.reference() for record in self._watched.alive()]
        optimizer_ids = set(map(id, optimizers))  # schedules of other optimizers are another thread's
        schedules = [each for each in self._watched.schedules if id(getattr(each, "optimizer", None)) in optimizer_ids]
        return {
            "parameters": {name: tensors.put(f"parameter.{name}", p) for name, p in names.alone.items()},
            "models": tuple([take_model(tensors, number, model, replaced) for number, model in enumerate(models)]),
            "optimizers": tuple(
                [
                    take_optimizer(tensors, number, each, list(map(names.of, parameters_of(each))))
                    for number, each in enumerate(optimizers)
                ]
            ),
            "scalers": take_all(tensors, "scaler", list(self._watched.scalers)),
            "schedules": take_all(tensors, "schedule", schedules),
        }

    def _gradients_of(self, tensors: SnapshotTensors, names: TensorNames) -> dict[str, Any]:
        """Return the digests of all gradients, and the values of those that are not finite."""
        not_finite, digests = {}, {}
        for name, parameter in names.parameters.items():
            if parameter.grad is not None:
                digests[name] = digest(parameter.grad)
                if self._tests.count(parameter.grad)[0]:
                    not_finite[name] = tensors.put(f"gradient.{name}", values_of(parameter.grad))
        return {"gradients": {name: key for name, key in not_finite.items() if key}, "gradient_digests": digests}

    def _batches(self, tensors: SnapshotTensors, step: TrainingStep, models: list[Any]) -> Iterator[dict[str, Any]]:
        batches = self._input_batches(step)
        if _are_of_script([batch.origin for batch in batches]):
            batches += self._script_variables(batches)
        loaders = list(dict.fromkeys(_loader(batch) for batch in batches if batch.origin == "loader"))
        for number, record in enumerate(batches):
            rows = _rows(record)
            samples, axis = _samples(record.node, rows)
            batch: dict[str, Any] = {"from": record.origin, "value": tensors.fill(f"batch.{number}", record.node)}
            if record.origin == "loader" and len(loaders) > 1:
                batch["loader"] = loaders.index(_loader(record))
            elif record.origin != "loader" and record.source != "":
                source = record.source
                batch["name"] = source if isinstance(source, str) else module_name(models, source)
            if rows:
                batch.update(indices=rows, may_be_sorted=record.source is None or record.source.may_be_sorted)
            random = step.start.fetch_random if step.batches.is_ahead else record.random
            if record.origin == "loader" and random is not None:
                batch["random"] = take_random(tensors, random(), f"batch.{number}.random")
            yield {**batch, "samples": samples, "sample_axis": axis}

    def _input_batches(self, step: TrainingStep) -> list[BatchRecord]:
        """Return the step's batches: those since the step before, or fetched earlier by a loader that is ahead."""
        batches = list(step.batches.current)
        if not step.batches.are_loaded:
            batches = step.batches.earlier + batches
        root_calls = [BatchRecord("forward", module, pack(value, leaf)) for module, value in step.start.root_calls]
        calls = [call.node for call in root_calls] or [batch.node for batch in batches if batch.origin == "forward"]
        loaded = [batch for batch in batches if batch.origin == "loader"]
        if self._are_same(calls, loaded):
            return batches
        used = {id(batch): batch for window in step.batches.past for batch in window}
        used = {**used, **{id(batch): batch for batch in loaded}}
        used = {key: used[key] for key in used if any(self._are_same([call], [used[key]]) for call in calls)}
        if used and all(any(self._are_same([call], [batch]) for batch in used.values()) for call in calls):
            loaders = [_loader(batch) for batch in used.values()]
            return [*used.values(), *[batch for batch in loaded if _loader(batch) not in loaders]]
        if step.batches.is_ahead and step.batches.are_loaded and step.batches.past:
            batches = step.batches.past[-1][-1:] + loaded[:-1]  # chosen by their order alone
        elif step.batches.is_ahead and step.batches.are_loaded:  # in the first step
            batches = _first_used(loaded, calls) + [batch for batch in batches if batch.origin != "loader"]
        return batches + root_calls

    def _script_variables(self, batches: list[BatchRecord]) -> list[BatchRecord]:
        """Return what the script's local variables hold of the batch, if no DataLoader returned it."""
        inputs = [leaf_value for batch in batches if batch.origin == "forward" for leaf_value in leaves(batch.node)]
        (samples, _), records = _samples(batches[0].node), []
        for function, values in (
            [] if samples is None else variables_with_samples(sys._getframe(1), samples, _may_be_cut)
        ):
            others = {name: value for name, value in values.items() if not self._is_among(value, inputs)}
            if others:
                records.append(BatchRecord("script", function, pack(others, leaf)))
        return records

    def _is_among(self, value: Any, tensors: list[Any]) -> bool:
        """Return whether the model was called with this very value, which is then replaced with it anyway."""
        return is_tensor(value) and any(value.device == each.device and self._is_same(value, each) for each in tensors)

    def _are_same(self, entries: list[Node], batches: list[BatchRecord]) -> bool:
        """Return whether all tensors that the model was called with are among a loader's batches."""
        tensors = [other for batch in batches for other in leaves(batch.node)]
        return all(
            any(self._is_same(entered, other) for other in tensors) for entry in entries for entered in leaves(entry)
        )

    def _is_same(self, left: Any, right: Any) -> bool:
        if left is right:
            return True
        if (
            is_nested(left)
            or is_nested(right)
            or left.shape != right.shape
            or left.dtype != right.dtype
            or left.numel() * left.element_size() > MAX_COMPARED
        ):
            return False
        try:
            left, right = (as_dense_cpu(tensor).reshape(-1).view(self._torch.uint8) for tensor in (left, right))
            return bool(self._torch.equal(left, right))
        except RuntimeError:  # tensors of a kind that cannot be compared
            return False

    def _environment(self) -> dict[str, Any]:
        torch = self._torch
        facts: dict[str, Any] = {"threads": torch.get_num_threads()}
        for name in ("are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "get_default_dtype"):
            if hasattr(torch, name):
                facts[name] = str(getattr(torch, name)())
        if private_api.uses_cuda(torch):
            facts["devices"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
            facts["cuda"] = str(torch.version.cuda)
        return facts


def _is_sharded(model: Any) -> bool:
    """Return whether the model contains FSDP version 1, whose shards look like plain tensors."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def _may_be_cut(part: Any) -> bool:
    """Return whether samples can be taken of a script's tensor or array, and it is no result of its step."""
    if not is_tensor(part):
        return True
    is_dense = part.layout is sys.modules["torch"].strided and not part.is_quantized
    return is_dense and is_plain(part) and has_memory(part) and not part.requires_grad


def _are_of_script(origins: list[str]) -> bool:
    """Return whether the script made the batch itself: it called a model, and no DataLoader returned a batch."""
    return "forward" in origins and "loader" not in origins


def _loader(batch: BatchRecord) -> Any:
    return None if batch.source is None else id(batch.source.loader)


def left_out_of(batches: Sequence[dict[str, Any]]) -> list[str]:
    """Return a note about the values of the batches that are not saved, if there are any."""
    classes = list(dict.fromkeys(name for batch in batches for name in leaf_contents(batch["value"], ("left_out",))))
    more = f" and {len(classes) - MAX_CLASSES} more" if len(classes) > MAX_CLASSES else ""
    return [f"the batch is kept without its {', '.join(classes[:MAX_CLASSES])}{more}"] if classes else []


def leaves(node: Node) -> Iterator[Any]:
    """Yield the tensors that a node holds."""
    if is_tensor(node.get("held")):
        yield node["held"]
    for part in child_nodes(node):
        yield from leaves(part)


def _first_used(loaded: list[BatchRecord], calls: Sequence[Node]) -> list[BatchRecord]:
    """Return the first of several batches, as many as the calls had samples; all of them if no number fits."""
    wanted, count = sum(_samples(call)[0] or 0 for call in calls), 0
    for number, batch in enumerate(loaded, 1):
        count += _samples(batch.node, _rows(batch))[0] or 0
        if count == wanted:
            return loaded[:number]
    return loaded


def _samples(node: Node, rows: Sequence[int] = ()) -> tuple[int | None, int | None]:
    """Return the number of samples, and their axis: by the sampler's indices, else by the first tensor's rows."""
    index_count = len(rows)
    arrays, others = list(_arrays(node)), list(_arrays(node, index_count))
    if not arrays:
        is_list = 0 < index_count == len(_items(node))  # as of texts
        return (index_count, 0) if is_list else _nested_samples(node)
    if len(others) < len(arrays) and all(int(leaf.shape[0]) == index_count for leaf in others):
        return index_count, 0
    lengths = {int(leaf.shape[0]) for leaf in arrays if is_tensor(leaf)}
    if _has_objects(node) and (len(lengths) > 1 or (index_count > 1 and lengths != {index_count})):
        return None, None
    if index_count > 1 and _are_joined(others, index_count):
        return None, None
    largest = max(arrays, key=_size)
    if not index_count:
        return int(arrays[0].shape[0]), 0
    if int(largest.shape[0]) != index_count and list(largest.shape[1:2]) == [index_count]:
        return index_count, 1  # time first
    return (index_count if any(int(leaf.shape[0]) == index_count for leaf in arrays) else int(arrays[0].shape[0])), 0


def _are_joined(arrays: Sequence[Any], sample_count: int) -> bool:
    """Return whether a sample may have several rows, as joined graphs have nodes: then rows cannot be assigned."""
    lengths = {int(array.shape[0]) for array in arrays if list(array.shape[1:2]) != [sample_count]}
    is_multiple = len(lengths) == 1 and max(lengths) % sample_count == 0  # such as two views of each sample
    return any(length > sample_count for length in lengths) and not is_multiple


def _items(node: Node) -> list[Node]:
    return child_nodes(node) if "list" in node or "tuple" in node else []


def _arrays(node: Node, sample_count: int = 0) -> Iterator[Any]:
    """Yield the tensors and arrays with axes in a node, without those in a list of ``sample_count`` samples."""
    value: Any = node.get("held")
    if hasattr(type(value), "shape"):
        yield from [] if is_nested(value) or not value.ndim else [value]
    elif not (sample_count and _is_list_of_samples(node, sample_count)):
        for part in child_nodes(node):
            yield from _arrays(part, sample_count)


def _is_list_of_samples(node: Node, count: int) -> bool:
    is_list = len(_items(node)) == count
    return is_list and all(int(part.shape[0]) != count for part in _arrays(node))


def _size(value: Any) -> int:
    return int(value.numel() if is_tensor(value) else value.size)


def _nested_samples(node: Node) -> tuple[int | None, int | None]:
    """Return number and axis of the samples of nested tensors, which have no shape."""
    return next(((int(tensor.size(0)), 0) for tensor in leaves(node) if tensor.ndim), (None, None))


def _rows(record: BatchRecord) -> list[int]:
    """Return the indices of a batch's samples in the whole data set, of which the loader may use a Subset."""
    rows = record.indices.tolist() if hasattr(record.indices, "tolist") else record.indices
    if not isinstance(rows, list) or not all(hasattr(row, "__index__") for row in rows):
        return []
    subset = None if record.source is None else record.source.subset
    data_subset = None if subset is None else subset()
    while data_subset is not None:
        rows, dataset = [data_subset.indices[row] for row in rows], data_subset.dataset
        data_subset = dataset if type(dataset) is type(data_subset) else None
    return list(map(int, rows))


def _has_objects(node: Node) -> bool:
    return "object" in node or any(map(_has_objects, child_nodes(node)))


def _loss(torch: Any, step: TrainingStep) -> dict[str, Any] | None:
    loss = step.losses.tensor(torch)
    if loss is None:
        return None
    value = float(loss.item()).hex() if loss.numel() == 1 and not loss.is_complex() else None
    return {"value": value, "digest": digest(loss)}


def _notes(step: TrainingStep) -> list[str]:
    notes = []
    if step.batches.has_changed():
        notes.append("the script has changed a batch in place since it was given it, and it is kept as it was changed")
    if not step.start.has_random:
        notes.append("no random states are kept, as no module was called and no DataLoader gave a batch in this step")
    return notes
