"""Says where two series of a trail part, and what follows from that for the cause."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit import trails
from reprokit.verify.partings import GENERATORS, LENGTH, OF_TENSORS, ORDER, TENSORS, Found, Quantity

NAMED = 3  # tensors named in a sentence
LOOKED_BACK = 64  # steps, for the last parameters that are known
_PLURAL = frozenset([TENSORS, "gradients", "parameters"])


def counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def noun(found: Found, name: str) -> str:
    generators = {"torch": found.left.framework, "python": "Python", "numpy": "NumPy"}
    return f"random state of {generators[name]}" if name in generators else name


def place(found: Found, name: str) -> str:
    """Of a quantity that is not the first to part."""
    quantity = found.quantities[name]
    if name == LENGTH:
        return f"{counted(found.left.count)} against {counted(found.right.count)}"
    stop = min(found.left.count, found.right.count)
    return f"first at step {quantity.first:,}{_named(quantity)}; in {quantity.count:,} of {counted(stop)}"


def _named(quantity: Quantity) -> str:
    if not quantity.tensors:
        return ""
    more = len(quantity.tensors) - NAMED
    return f" ({', '.join(quantity.tensors[:NAMED])}{f' and {more} more' if more > 0 else ''})"


def sentence(found: Found, name: str) -> str:
    """Where the runs part, by what, what is the same there, and what follows from that."""
    quantity = found.quantities[name]
    step = quantity.first
    assert step is not None
    if name == LENGTH:
        return _length(found)
    beginning = f"identical for {counted(step)}; at step {step:,}" if step else "at step 0, the first,"
    what, verb = noun(found, name), "are" if name in _PLURAL else "is"
    parts = [f"{beginning} the {what} {verb} the first to differ{_named(quantity)}"]
    is_known = name == TENSORS or None not in (quantity.left, quantity.right) or bool(quantity.tensors)
    parts += [_cause(found, name, step)] if is_known else _one_side_knows(quantity)
    parts += _after(found, name, step) + (_how_to_name(found, name) if is_known else [])
    return "; ".join(parts)


def _length(found: Found) -> str:
    counts = found.left.count, found.right.count
    side = "left" if counts[0] < counts[1] else "right"
    return f"identical for {counted(min(counts))}, then the {side} run ends; the other has {counted(max(counts))}"


def _cause(found: Found, name: str, step: int) -> str:
    if name == TENSORS:
        return "the optimizer, or the names, types or shapes of what it updates are others"
    if name == "batch":
        before = ", though the random states before it are equal" if step and _draws_equal(found, step) else ""
        return f"the batch differs first{before}: data order or augmentation"
    if name in GENERATORS:
        return _drawn(found, step)
    return f"{_equal_there(found, name)} the cause is in {_where(found, name, step)}"


def _drawn(found: Found, step: int) -> str:
    """Of a random state."""
    batch = found.quantities["batch"]
    if all(found.is_idle(name) for name in found.differing):
        return "it did not change during the training: nothing drew from it, and nothing else differs"
    draws = "another seed, or another number or order of random draws"
    if batch.first is not None:
        return f"the random state differs before the batch (first at step {batch.first:,}): {draws}"
    others = [name for name in ("loss", *OF_TENSORS) if found.quantities[name].first is not None]
    if others:
        first = min(others, key=found.point)
        at = found.quantities[first].first
        return f"the {first} follow{'' if first in _PLURAL else 's'} at step {at:,}: {draws}"
    return f"batch, loss, gradients and parameters do not differ, as far as they are known: {draws}"


def _are_known(found: Found, names: Sequence[str]) -> bool:
    return any(found.quantities[name].known for name in names)


def _draws_equal(found: Found, step: int) -> bool:
    """Whether the generators that matter are the same until this step."""
    mattering = [name for name in GENERATORS if found.quantities[name].known and not found.is_idle(name)]
    firsts = [found.quantities[name].first for name in mattering]
    return bool(mattering) and all(first is None or first >= step for first in firsts)


def _equal_there(found: Found, name: str) -> str:
    """What of the step is known and the same, before this quantity."""
    step = found.quantities[name].first or 0
    before = [word for word in ("batch", "loss", "gradients") if ORDER.index(word) < ORDER.index(name)]
    names = [word for word in before if found.quantities[word].known]
    if _draws_equal(found, step + 1):
        names.insert(1 if "batch" in names else 0, "random state")
    if not names:
        return "nothing else of that step is known;"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{listed} of that step {'is' if names in (['batch'], ['random state'], ['loss']) else 'are'} equal, so"


def _where(found: Found, name: str, step: int) -> str:
    if name == "parameters" and _are_known(found, ["gradients"]):
        return "the update: the optimizer or its state"
    initial = "the initial parameters or " if step == 0 and name != "parameters" else ""
    batch = "" if _are_known(found, ["batch"]) else f"the batch, which is not known, {'' if initial else 'or '}"
    if name == "loss":
        part = f"the forward computation{_before(found, step)}"
        part += ": a non-deterministic operation, or state that is no parameter"
    elif name == "gradients":
        part = "the backward computation" if _are_known(found, ["loss"]) else "forward or backward computation"
        part += ": a non-deterministic operation"
    else:
        part = "the forward or backward computation, or the optimizer: gradients were not recorded"
    return f"{batch}{initial}{part}"


def _before(found: Found, step: int) -> str:
    """Where the parameters of the step before are not known, as each step's are not: an update may be the cause."""
    for number in range(step - 1, max(-1, step - 1 - LOOKED_BACK), -1):
        sides = [*found.left.steps(number, number + 1), *found.right.steps(number, number + 1)]
        if all(side.parameters is not None for side in sides):
            return "" if number == step - 1 else f", or in an update since step {number:,}"
    return ", or in an earlier update" if step else ""


def _one_side_knows(quantity: Quantity) -> list[str]:
    if (quantity.left is None) == (quantity.right is None):
        return []
    return [f"only the {'right' if quantity.left is None else 'left'} run has it"]


def _after(found: Found, name: str, step: int) -> list[str]:
    """How much of what follows differs."""
    following = min(found.left.count, found.right.count) - step
    if name == TENSORS or found.steps == 0:
        return []
    length = f"; {_length_in_short(found)}" if found.left.count != found.right.count else ""
    steps = min(found.steps, following)  # the state of an idle generator differs before, too
    return [f"{steps:,} of the {counted(following)} from there on differ{'s' if steps == 1 else ''}{length}"]


def _length_in_short(found: Found) -> str:
    return f"the runs have {found.left.count:,} and {counted(found.right.count)}"


def _how_to_name(found: Found, name: str) -> list[str]:
    if name not in OF_TENSORS or found.quantities[name].tensors:
        return []
    keep = trails.MAX_KEPT
    hint = f"digests of single tensors are kept of the first and the last {keep} steps: end both runs right after it"
    return [f"which tensor is not known ({hint})"]
