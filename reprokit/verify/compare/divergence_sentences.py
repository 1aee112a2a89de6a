"""Says where two series of a trail part, and what follows from that for the cause."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit import trails
from reprokit.trails import TrailStep
from reprokit.verify.compare.divergences import (
    BEFORE,
    BUFFERS,
    GENERATORS,
    INPUTS,
    LENGTH,
    OF_TENSORS,
    ORDER,
    PER_STEP,
    TENSORS,
    Quantity,
    SeriesDivergence,
)

NAMED = 3  # tensors named in a sentence
LOOKED_BACK = 64  # steps, for the last parameters that are known
# Of quantities, in figures.
NAMES = {**dict.fromkeys(GENERATORS, "random state"), BEFORE: "parameters before", INPUTS: "model inputs"}
_PLURAL = frozenset([TENSORS, BEFORE, INPUTS, "gradients", "parameters", BUFFERS])


def counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def noun(found: SeriesDivergence, name: str) -> str:
    if name == BEFORE:
        return "parameters before the step"
    if name == INPUTS:
        return NAMES[name]
    return f"random state of {_generator(found, name)}" if name in GENERATORS else name


def _generator(found: SeriesDivergence, name: str) -> str:
    return {"torch": found.left.framework, "python": "Python", "numpy": "NumPy"}[name]


def place(found: SeriesDivergence, name: str) -> str:
    """Of a quantity that is not the first to part."""
    quantity = found.quantities[name]
    if name == LENGTH:
        return f"{counted(found.left.count)} against {counted(found.right.count)}"
    stop = min(found.left.count, found.right.count)
    drawn = found.step(name)
    if found.is_idle(name):
        return "it differs from the start on; no step drew from it, so it is no cause"
    is_drawn_late = name in GENERATORS and quantity.first == 0 and drawn
    since = "from the start on, and is drawn from first" if is_drawn_late else "first"
    return f"{since} at step {drawn:,}{_named(quantity)}; in {quantity.count:,} of {counted(stop)}"


def _named(quantity: Quantity) -> str:
    if not quantity.tensors:
        return ""
    more = len(quantity.tensors) - NAMED
    return f" ({', '.join(quantity.tensors[:NAMED])}{f' and {more} more' if more > 0 else ''})"


def sentence(found: SeriesDivergence, name: str) -> str:
    """Where the runs part, by what, what is the same there, and what follows from that."""
    quantity = found.quantities[name]
    if name == LENGTH:
        return _length(found)
    step = found.step(name)
    beginning = f"identical for {counted(step)}; at step {step:,}" if step else "at step 0, the first,"
    if name == INPUTS and quantity.first != step:
        beginning = f"identical for {counted(step)} but for model inputs that changed no result; at step {step:,}"
    elif step and quantity.first == 0:  # a generator that nobody drew from until then
        beginning = f"identical for {counted(step)} but for generators that no step draws from; at step {step:,}"
    what, verb = noun(found, name).partition(" of ")[0], "are" if name in _PLURAL else "is"
    parts = [f"{beginning} the {what} {verb} the first to differ{_named(quantity)}"]
    is_known = name == TENSORS or None not in (quantity.left, quantity.right) or bool(quantity.tensors)
    parts += [_cause(found, name, step)] if is_known else _one_side_knows(quantity)
    parts += _after(found, name, step) + (_how_to_name(found, name) if is_known else [])
    return "; ".join(parts)


def _length(found: SeriesDivergence) -> str:
    counts = found.left.count, found.right.count
    side = "left" if counts[0] < counts[1] else "right"
    return f"identical for {counted(min(counts))}, then the {side} run ends; the other has {counted(max(counts))}"


def _cause(found: SeriesDivergence, name: str, step: int) -> str:
    if name == TENSORS:
        return "the optimizer, or the names, types or shapes of what it updates are others"
    if name == BEFORE:
        return f"the cause is what gave them their values{_made_before(found)}" if step == 0 else _between(found, step)
    if name == "batch":
        before = ", though the random states before it are equal" if step and _draws_equal(found, step) else ""
        return f"the cause is in the data, their order or augmentation{before}{'' if step else _made_before(found)}"
    if name in GENERATORS:
        return _drawn(found, name)
    if name == INPUTS:
        return f"{_equal_there(found, name)} the cause is in {_made_of_it(found, step)}"
    if name == BUFFERS:
        return f"{_equal_there(found, name)} the cause is what changes buffers: the forward computation, or the script"
    return f"{_equal_there(found, name)} the cause is in {_where(found, name, step)}"


def _between(found: SeriesDivergence, step: int) -> str:
    """Of parameters that are others than the update before left behind."""
    last = "those that the step before left are equal, so " if _before(found, step) == "" else ""
    return f"{last}the cause is what changes parameters between the steps"


def _made_of_it(found: SeriesDivergence, step: int) -> str:
    """Where model inputs come from."""
    is_made = _are_known(found, ["batch"])
    source = "what the script makes of the batch" if is_made else "the data or what is made of them"
    several = any(at.inputs_several for at in _both(found, step))
    other = ", or in what another call of a model gave it" if several else ""
    return f"{source} before the model gets it{other}{'' if step else _made_before(found)}"


def _both(found: SeriesDivergence, step: int) -> list[TrailStep]:
    """This step of either run."""
    return [*found.left.steps(step, step + 1), *found.right.steps(step, step + 1)]


def _made_before(found: SeriesDivergence) -> str:
    """Generators that may have been drawn from before the first step."""
    names = " and ".join(_generator(found, name) for name in found.made_before())
    return f", perhaps by random numbers of {names}, which differed before the first step" if names else ""


def _drawn(found: SeriesDivergence, name: str) -> str:
    """Of a random state."""
    if all(found.is_idle(other) for other in found.differing):
        return "no step drew from it, and nothing else of the steps differs"
    draws = "another seed, or another number or order of random draws"
    others = [other for other in PER_STEP if other not in GENERATORS and found.quantities[other].first is not None]
    if not others:
        return f"nothing else of the steps differs, as far as it is known: {draws}"
    first = min(others, key=found.point)
    what, step = noun(found, first), found.quantities[first].first
    verb = "follow" if first in _PLURAL else "follows"
    return f"the {what} {verb} at step {step:,}: {draws}"


def _are_known(found: SeriesDivergence, names: Sequence[str]) -> bool:
    return any(found.quantities[name].known for name in names)


def _draws_equal(found: SeriesDivergence, step: int) -> bool:
    """Whether the generators that matter are the same until this step."""
    mattering = [name for name in GENERATORS if found.quantities[name].known]
    points = [found.point(name)[0] for name in mattering if found.quantities[name].first is not None]
    return bool(mattering) and all(point >= step for point in points)


def _is_equal(found: SeriesDivergence, name: str, step: int) -> bool:
    """Whether a quantity before the first to differ is known, and so the same; of model inputs at this very step."""
    if name != INPUTS:
        return found.quantities[name].known
    inputs = {at.inputs for at in _both(found, step)}
    return len(inputs) == 1 and None not in inputs


def _equal_there(found: SeriesDivergence, name: str) -> str:
    """What of the step is known and the same, before this quantity."""
    step = found.step(name)
    words = ("batch", INPUTS, "loss", "gradients", "parameters")
    before = [word for word in words if ORDER.index(word) < ORDER.index(name)]
    names = [NAMES.get(word, word) for word in before if _is_equal(found, word, step)]
    if _draws_equal(found, step + 1):
        names.insert(1 if "batch" in names else 0, "random state")
    if not names:
        return "nothing else of that step is known;"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    found_before = "the parameters before it and " if found.knows_before(step) else ""
    is_one = not found_before and names in (["batch"], ["random state"], ["loss"])
    return f"{found_before}{listed} of that step {'is' if is_one else 'are'} equal, so"


def _where(found: SeriesDivergence, name: str, step: int) -> str:
    unseen = _not_seen(found, name, step)
    hidden = f"; not seen: {unseen}" if unseen else ""
    if name == "parameters" and _are_known(found, ["gradients"]):
        return f"the update: the optimizer or its state{hidden}"
    if name == "loss":
        part = f"the forward computation{_before(found, step)}: a non-deterministic operation, or state that it reads"
    elif name == "gradients":
        part = "the backward computation" if _are_known(found, ["loss"]) else "forward or backward computation"
        part += ": a non-deterministic operation, or what changes gradients after it"
    else:
        part = "the forward or backward computation, or the optimizer: gradients were not recorded"
    return f"{part}{'' if step else _made_before(found)}{hidden}"


def _not_seen(found: SeriesDivergence, name: str, step: int) -> str:
    """What goes into the computation of a quantity that no digest tells."""
    unseen: list[str] = []
    if not found.knows_before(step):
        unseen.append("the parameters before the step" if step else "the initial parameters")
    if name != "parameters":
        unseen += [] if _are_known(found, [BUFFERS]) else ["buffers"]
        unseen += _not_seen_of_inputs(found, name, step)
    return ", ".join(unseen)


def _not_seen_of_inputs(found: SeriesDivergence, name: str, step: int) -> list[str]:
    batch = "" if _are_known(found, ["batch"]) else "the batch, and "
    made = f"{batch}what the script makes of {'it' if batch else 'the batch'}"
    if not _is_equal(found, INPUTS, step):
        return [f"{made} before the model gets it"]
    partial = ["some of the model inputs"] if any(at.inputs_partial for at in _both(found, step)) else []
    return partial + ([f"{made} for the loss"] if name == "loss" else [])


def _before(found: SeriesDivergence, step: int) -> str:
    """Where the parameters of the step before are not known, as each step's are not: an update may be the cause."""
    for number in range(step - 1, max(-1, step - 1 - LOOKED_BACK), -1):
        if all(side.parameters is not None for side in _both(found, number)):
            return "" if number == step - 1 else f", or in an update since step {number:,}"
    return ", or in an earlier update" if step else ""


def _one_side_knows(quantity: Quantity) -> list[str]:
    if (quantity.left is None) == (quantity.right is None):
        return []
    return [f"only the {'right' if quantity.left is None else 'left'} run has it"]


def _after(found: SeriesDivergence, name: str, step: int) -> list[str]:
    """How much of what follows differs."""
    following = min(found.left.count, found.right.count) - step
    if name == TENSORS or found.steps == 0:
        return []
    length = f"; {_length_in_short(found)}" if found.left.count != found.right.count else ""
    steps = min(found.steps, following)  # the state of an idle generator differs before, too
    return [f"{steps:,} of the {counted(following)} from there on differ{'s' if steps == 1 else ''}{length}"]


def _length_in_short(found: SeriesDivergence) -> str:
    return f"the runs have {found.left.count:,} and {counted(found.right.count)}"


def _how_to_name(found: SeriesDivergence, name: str) -> list[str]:
    if name not in OF_TENSORS or found.quantities[name].tensors:
        return []
    keep = trails.MAX_KEPT
    hint = f"digests of single tensors are kept of the first and the last {keep} steps: end both runs right after it"
    return [f"which tensor is not known ({hint})"]
