"""Prints snapshots, and results of re-executing their step, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reprokit.agent.capture import trees
from reprokit.agent.capture.header import SnapshotHeader, Trigger, in_words
from reprokit.agent.capture.store import SnapshotFile
from reprokit.core.printable import printable
from reprokit.core.screen import Cells, labeled, print_rows
from reprokit.core.untrusted_json import object_in

FORMAT = 1
SHOWN = 6  # entries of each kind
NAMES = 3
MAX_SHAPES = 8
MAX_INDICES = 20
COUNTS = {"zeros": "zero", "negative": "negative", "subnormal": "subnormal", "nonfinite": "not finite"}

Rows = Iterator[tuple[str, str]]


def print_snapshot(file: SnapshotFile) -> None:
    """Print a summary of a snapshot."""
    headline = f"snapshot {file.path}: step {file.facts.step}: {in_words(file.facts.trigger)}"
    _print(headline, _of_snapshot(file), "bold red")


def document(file: SnapshotFile) -> dict[str, Any]:
    """Return a snapshot as a JSON document: snapshot.json, and names, dtypes and shapes of its tensors."""
    tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in file.tensors.values()]
    return {"format": FORMAT, "path": file.path, "snapshot": file.header, "tensors": tensors}


def print_result(result: Mapping[str, Any], mode: str) -> None:
    """Print the result of a re-executed step."""
    trigger = in_words(Trigger.read(result["trigger"])) if result.get("trigger") else ""
    different, loss = _list(object_in(result, "gradients"), "different"), object_in(result, "loss")
    if result.get("reproduced") and (different or loss.get("equal") is False):
        rest = result.get("words") if mode == "explain" else trigger
        words = f"other {_compared(result.get('framework'))}" if different else "another loss"
        headline, style = f"reproduced with {words} than captured: {rest}", "bold yellow"
    elif not result.get("reproduced"):
        rest = f"; instead: {trigger}" if trigger else ""
        headline, style = f"not reproduced{rest}", "bold yellow"
    elif mode == "explain" and result.get("words"):
        headline, style = str(result["words"]), "bold red"
    elif mode == "minimize":
        headline, style = _smallest(result), "bold red"
    else:
        headline, style = f"reproduced: {trigger}", "bold red"
    _print(headline, _of_result(result, mode), style)


def _print(headline: str, rows: Rows, style: str) -> None:
    print_rows(headline, list(map(Cells, labeled(rows))), style=style)


# A snapshot


def _of_snapshot(file: SnapshotFile) -> Rows:
    header = file.facts
    yield "written by", _joined([*_pairs(header.versions), f"process {file.header.get('process') or '0'}"])
    yield "step", _joined(_step(header))
    for trigger in header.also[:SHOWN]:
        yield "also", in_words(trigger)
    yield from (("where", line) for line in _places(list(header.trigger.where)))
    yield from (("model", line) for line in _models(header))
    yield from (("optimizer", line) for line in _optimizers(header))
    yield from (("batch", line) for line in _batches(file, header))
    yield "random", _joined(sorted(header.random)) or "no state was kept"
    yield _compared(header.framework), _not_finite(header)
    losses = [_number(text) for text in header.losses[-SHOWN:]]
    if losses:
        yield "last losses", ", ".join(losses)
    yield from (("note", note) for note in header.notes[:SHOWN])
    size = sum(len(tensor.data) for tensor in file.tensors.values())
    yield "holds", f"{len(file.tensors)} tensors, {size:,} bytes; all digests fit"


def _step(header: SnapshotHeader) -> Iterator[str]:
    yield f"{header.step} (steps begin with 0)"
    facts = {"epoch": header.epoch, "steps in it": header.steps_in_epoch, "rank": header.rank, "of ranks": header.world}
    for words, number in facts.items():
        if number is not None:
            yield f"{words} {number}"
    loss = (header.loss or {}).get("value")
    if loss is not None:
        yield f"loss {_number(loss)}"


def _models(header: SnapshotHeader) -> Iterator[str]:
    for model in header.models[:SHOWN]:
        count = len(object_in(model, "tensors"))
        yield f"{model.get('name')}: {model.get('class')}, {count} tensor{'s' if count != 1 else ''}"


def _optimizers(header: SnapshotHeader) -> Iterator[str]:
    for kind in ("optimizers", "scalers", "schedules"):
        for entry in getattr(header, kind)[:SHOWN]:
            yield f"{entry.get('name') or kind}: {entry.get('class')}"


def _batches(file: SnapshotFile, header: SnapshotHeader) -> Iterator[str]:
    for batch in header.batches[:SHOWN]:
        names = trees.leaf_contents(batch.get("value"))
        tensors = [file.tensors[name] for name in names[:MAX_SHAPES] if name in file.tensors]
        shapes = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
        more = [f"and {len(names) - MAX_SHAPES} more"] if len(names) > MAX_SHAPES else []
        samples = f"{batch['samples']} samples" if batch.get("samples") is not None else ""
        loader = f" {batch['loader']}" if type(batch.get("loader")) is int else ""
        classes = list(dict.fromkeys(trees.leaf_contents(batch.get("value"), ("left_out",))))[:MAX_SHAPES]
        left_out = [f"without its {', '.join(classes)}"] if classes else []
        yield _joined([f"from {batch.get('from')}{loader}", samples, *shapes, *more, *left_out])


def _compared(framework: Any) -> str:
    """Return what a step's digests are of: JAX shows what functions return, not which of it is a gradient."""
    return "results" if framework == "jax" else "gradients"


def _not_finite(header: SnapshotHeader) -> str:
    not_finite = sorted(header.gradients)
    names = ", ".join(not_finite[:NAMES]) + (", ..." if len(not_finite) > NAMES else "")
    return f"{len(not_finite)} of {len(header.gradient_digests)} are not finite" + (f": {names}" if not_finite else "")


# A result


def _of_result(result: Mapping[str, Any], mode: str) -> Rows:
    if mode == "explain":
        yield from _explained(result)
    indices = _list(result, "indices")
    if indices:
        more = ", ..." if len(indices) > MAX_INDICES else ""
        yield "data set", f"index {', '.join(map(str, indices[:MAX_INDICES]))}{more}, as the sampler chose"
    gradients, loss = object_in(result, "gradients"), object_in(result, "loss")
    different = _list(gradients, "different")
    if gradients:
        equal = gradients.get("equal")
        whole = equal + len(different) if isinstance(equal, int) else "?"
        yield _compared(result.get("framework")), f"{equal} of {whole} are bitwise as captured"
        yield from (("", f"another: {name}") for name in different[:NAMES])
    if loss.get("value") is not None:
        equal = loss.get("equal")
        words = ", bitwise as captured" if equal is True else ", another" if equal is False else ""
        yield "loss", _number(loss["value"]) + words
    yield from (("note", str(note)) for note in _list(result, "problems")[:SHOWN])


def _smallest(result: Mapping[str, Any]) -> str:
    samples, whole, trials = _list(result, "samples"), result.get("of"), result.get("trials")
    if result.get("only_full"):
        return (
            f"only the full batch of {whole} samples does it: without any one of them all is finite ({trials} trials)"
        )
    named = ", ".join(str(sample) for sample in samples[:20]) + (", ..." if len(samples) > 20 else "")
    words = "sample" if len(samples) == 1 else "samples"
    bound = "" if result.get("smallest") else "; a smaller part may be enough, the trials ended before"
    return f"{len(samples)} of {whole} samples are enough: {words} {named} (counted from 0; {trials} trials{bound})"


def _explained(result: Mapping[str, Any]) -> Rows:
    operation = result.get("operation")
    if not operation:
        yield "operation", "none was seen that makes finite values not finite"
        yield from (("where", line) for line in _places(result.get("where")))
        return
    operator = result.get("operator")
    yield "operation", str(operation) + (f" ({operator})" if operator and operator != operation else "")
    part = "update" if result.get("phase") == "update" else f"{result.get('phase')} pass"
    yield "in", _joined([f"the {part}", f"layer {result['layer']}" if result.get("layer") else ""])
    yield from (("where", line) for line in _places(result.get("where")))
    for key in ("inputs", "outputs"):
        yield from ((key, _statistics(entry)) for entry in _objects(result, key)[:SHOWN])


def _statistics(entry: Mapping[str, Any]) -> str:
    """Return one line for a tensor: dtype, shape, and its statistics that are not 0."""
    name = f"{entry['name']}: " if entry.get("name") else ""
    words = [f"{name}{entry.get('dtype')}{entry.get('shape')}"]
    words += [f"{key} {_number(entry[key])}" for key in ("min", "max", "mean") if entry.get(key) is not None]
    words += [f"{entry[key]} {name}" for key, name in COUNTS.items() if entry.get(key)]
    return ", ".join(words)


# Of both


def _places(where: Any) -> Iterator[str]:
    for place in where[:SHOWN] if isinstance(where, list) else ():
        if isinstance(place, list) and len(place) >= 2:
            function = f" in {place[2]}" if len(place) > 2 and place[2] else ""
            yield f"{place[0]}:{place[1]}{function}"


def _number(value: Any) -> str:
    """Return a number as text; it may be given as an exact hexadecimal text."""
    try:
        is_exact = isinstance(value, str) and "0x" in value
        return f"{float.fromhex(value) if is_exact else float(value):.9g}"
    except (ValueError, TypeError, OverflowError):
        return printable(str(value), 40)


def _joined(parts: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(part for part in parts if part)


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} {values[key]}" for key in list(values)[:SHOWN]]


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    content = value.get(key)
    return content if isinstance(content, list) else []


def _objects(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [entry for entry in _list(value, key) if isinstance(entry, dict)]
