"""Says where two series of a trail part, and what the cause may be, from the facts of their divergence."""

from __future__ import annotations

from reprokit.core.printable import listed
from reprokit.run_files import trails
from reprokit.verify.categories.divergences import (
    BEFORE,
    BOOSTING,
    BUFFERS,
    GENERATORS,
    INPUTS,
    LENGTH,
    OF_TENSORS,
    ORDER,
    PER_STEP,
    TENSORS,
    QuantityDivergence,
    SeriesDivergence,
    are_known,
    draws_equal,
    is_equal_before,
    steps_of_both,
)
from reprokit.verify.verdict import same_then_ends, same_until, same_until_passed_over

NAMED = 3  # tensors named in a sentence
LOOKED_BACK = 64  # steps searched for the last known parameters

# Names of quantities in figures.
NAMES = {**dict.fromkeys(GENERATORS, "random state"), BEFORE: "parameters before", INPUTS: "model inputs"}
_PLURAL = frozenset([TENSORS, BEFORE, INPUTS, "gradients", "parameters", BUFFERS])


def counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def noun(diff: SeriesDivergence, name: str) -> str:
    if name == BEFORE:
        return "parameters before the step"
    if name == INPUTS:
        return NAMES[name]
    if name == BUFFERS and diff.left.framework in BOOSTING:
        return "trees of the whole model"
    return f"random state of {_generator(diff, name)}" if name in GENERATORS else name


def _generator(diff: SeriesDivergence, name: str) -> str:
    return {"torch": diff.left.framework, "python": "Python", "numpy": "NumPy"}[name]


def place(diff: SeriesDivergence, name: str) -> str:
    """Describe a quantity that differs but is not the first to do so."""
    quantity = diff.quantities[name]
    if name == LENGTH:
        return f"{counted(diff.left.count)} against {counted(diff.right.count)}"
    stop = min(diff.left.count, diff.right.count)
    drawn = diff.step(name)
    if diff.is_idle(name):
        return "it differs from the start on; no step drew from it, so it is no cause"
    is_drawn_late = name in GENERATORS and quantity.first == 0 and drawn
    since = "from the start on, and is drawn from first" if is_drawn_late else "first"
    return f"{since} at step {drawn:,}{_tensor_names(quantity)}; in {quantity.count:,} of {counted(stop)}"


def _tensor_names(quantity: QuantityDivergence) -> str:
    return f" ({listed(quantity.tensors, NAMED)})" if quantity.tensors else ""


def sentence(diff: SeriesDivergence, name: str) -> str:
    """Describe where the runs part, in which quantity, what is equal there, and what follows from that."""
    quantity = diff.quantities[name]
    if name == LENGTH:
        return _length_words(diff)
    step = diff.step(name)
    but_for = ""
    if name == INPUTS and quantity.first != step:
        but_for = " but for model inputs that changed no result"
    elif quantity.first == 0:  # a generator that no step drew from before
        but_for = " but for generators that no step draws from"
    before = diff.looked_at_before(step)
    is_passed_over = before + 1 < step
    beginning = same_until_passed_over(before, step) if is_passed_over else same_until(counted(step), step, but_for)
    subject, verb = noun(diff, name).partition(" of ")[0], "are" if name in _PLURAL else "is"
    parts = [f"{beginning} the {subject} {verb} the first to differ{_tensor_names(quantity)}"]
    if is_passed_over:
        which = "replays of both runs with --trail-every 1, compared with each other, tell the step"
        return "; ".join([parts[0], which, *_what_follows(diff, name, step)])
    is_known = name == TENSORS or None not in (quantity.left, quantity.right) or bool(quantity.tensors)
    parts += [cause_words(diff, name, step)] if is_known else _one_side_knows(quantity)
    parts += _what_follows(diff, name, step) + (_how_to_name(diff, name) if is_known else [])
    return "; ".join(parts)


def _length_words(diff: SeriesDivergence) -> str:
    counts = diff.left.count, diff.right.count
    side = "left" if counts[0] < counts[1] else "right"
    return same_then_ends(counted(min(counts)), side, counted(max(counts)))


def cause_words(diff: SeriesDivergence, name: str, step: int) -> str:
    """Describe what is equal in the step in which this quantity differs first, and where the cause is then."""
    if name == TENSORS:
        return "the optimizer, or the names, types or shapes of what it updates are others"
    if name == BEFORE:
        return (
            f"the cause is what gave them their values{_early_draws(diff)}"
            if step == 0
            else _cause_between_steps(diff, step)
        )
    if name == "batch":
        caveat = ", though the random states before it are equal" if step and draws_equal(diff, step) else ""
        return f"the cause is in the data, their order or augmentation{caveat}{'' if step else _early_draws(diff)}"
    if name in GENERATORS:
        return _cause_of_random_state(diff, name)
    if name == INPUTS:
        return f"{_equal_there(diff, name)} the cause is in {_source_of_inputs(diff, step)}"
    if name == BUFFERS and diff.left.framework in BOOSTING:
        return "the cause is what changed trees after their rounds, or trees that the training began with"
    if name == BUFFERS:
        return f"{_equal_there(diff, name)} the cause is what changes buffers: the forward computation, or the script"
    if diff.left.framework in BOOSTING:
        unseen = "the cause is in the booster's data, settings or seed, or in how it computes: none of these is seen"
        return unseen + _known_to_vary(diff.left.framework)
    return f"{_equal_there(diff, name)} the cause is in {_computation_words(diff, name, step)}"


def _known_to_vary(framework: str) -> str:
    """Name what is known of a framework that differs by itself on a CPU, by its functions and settings."""
    from reprokit import knowledge

    facts = [
        fact
        for fact in knowledge.load()
        if fact.verdict == "varies"
        and "cpu" in fact.devices
        and any(name.startswith(f"{framework}.") for name in (*fact.match.functions, *fact.match.settings))
    ]
    told = " and ".join(f"{fact.title} (reprokit knowledge {fact.id})" for fact in facts)
    return f"; known to vary by itself: {told}" if told else ""


def _cause_between_steps(diff: SeriesDivergence, step: int) -> str:
    """Describe the cause of parameters that differ from those that the previous update left."""
    last = "those that the step before left are equal, so " if _or_update(diff, step) == "" else ""
    return f"{last}the cause is what changes parameters between the steps"


def _source_of_inputs(diff: SeriesDivergence, step: int) -> str:
    """Describe where model inputs come from."""
    knows_batch = are_known(diff, ["batch"])
    source = "what the script makes of the batch" if knows_batch else "the data or what is made of them"
    has_several_calls = any(trail_step.inputs_several for trail_step in steps_of_both(diff, step))
    other_source = ", or in what another call of a model gave it" if has_several_calls else ""
    return f"{source} before the model gets it{other_source}{'' if step else _early_draws(diff)}"


def _early_draws(diff: SeriesDivergence) -> str:
    """Describe generators that may have been drawn from before the first step."""
    names = " and ".join(_generator(diff, name) for name in diff.drawn_before_start())
    return f", perhaps by random numbers of {names}, which differed before the first step" if names else ""


def _cause_of_random_state(diff: SeriesDivergence, name: str) -> str:
    """Describe the cause of a random state that differs."""
    if all(diff.is_idle(other) for other in diff.differing):
        return "no step drew from it, and nothing else of the steps differs"
    draws = "another seed, or another number or order of random draws"
    others = [other for other in PER_STEP if other not in GENERATORS and diff.quantities[other].first is not None]
    if not others:
        return f"nothing else of the steps differs, as far as it is known: {draws}"
    first = min(others, key=diff.point)
    subject, step = noun(diff, first), diff.quantities[first].first
    verb = "follow" if first in _PLURAL else "follows"
    return f"the {subject} {verb} at step {step:,}: {draws}"


def _equal_there(diff: SeriesDivergence, name: str) -> str:
    """Describe the quantities of the step that are known and equal, before this quantity."""
    step = diff.step(name)
    words = ("batch", INPUTS, "loss", "gradients", "parameters")
    earlier = [word for word in words if ORDER.index(word) < ORDER.index(name)]
    names = [NAMES.get(word, word) for word in earlier if is_equal_before(diff, word, step)]
    if draws_equal(diff, step + 1):
        names.insert(1 if "batch" in names else 0, "random state")
    if not names:
        return "nothing else of that step is known;"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    parameters_before = "the parameters before it and " if diff.knows_before(step) else ""
    is_singular = not parameters_before and names in (["batch"], ["random state"], ["loss"])
    return f"{parameters_before}{listed} of that step {'is' if is_singular else 'are'} equal, so"


def _computation_words(diff: SeriesDivergence, name: str, step: int) -> str:
    unseen = _not_seen(diff, name, step)
    hidden = f"; not seen: {unseen}" if unseen else ""
    if name == "parameters" and are_known(diff, ["gradients"]):
        return f"the update: the optimizer or its state{hidden}"
    if name == "loss":
        part = f"the forward computation{_or_update(diff, step)}: a non-deterministic operation, or state that it reads"
    elif name == "gradients":
        part = "the backward computation" if are_known(diff, ["loss"]) else "forward or backward computation"
        part += ": a non-deterministic operation, or what changes gradients after it"
    else:
        part = "the forward or backward computation, or the optimizer: gradients were not recorded"
    return f"{part}{'' if step else _early_draws(diff)}{hidden}"


def _not_seen(diff: SeriesDivergence, name: str, step: int) -> str:
    """Return the inputs of a quantity's computation that have no digest."""
    unseen: list[str] = []
    if not diff.knows_before(step):
        unseen.append("the parameters before the step" if step else "the initial parameters")
    if name != "parameters":
        unseen += [] if are_known(diff, [BUFFERS]) else ["buffers"]
        unseen += _not_seen_of_inputs(diff, name, step)
    return ", ".join(unseen)


def _not_seen_of_inputs(diff: SeriesDivergence, name: str, step: int) -> list[str]:
    batch = "" if are_known(diff, ["batch"]) else "the batch, and "
    derived = f"{batch}what the script makes of {'it' if batch else 'the batch'}"
    if not is_equal_before(diff, INPUTS, step):
        return [f"{derived} before the model gets it"]
    partial = (
        ["some of the model inputs"]
        if any(trail_step.inputs_partial for trail_step in steps_of_both(diff, step))
        else []
    )
    return partial + ([f"{derived} for the loss"] if name == "loss" else [])


def _or_update(diff: SeriesDivergence, step: int) -> str:
    """Describe an earlier update as a possible cause, if parameters of the step before are unknown."""
    for number in range(step - 1, max(-1, step - 1 - LOOKED_BACK), -1):
        if all(side.parameters is not None for side in steps_of_both(diff, number)):
            return "" if number == step - 1 else f", or in an update since step {number:,}"
    return ", or in an earlier update" if step else ""


def _one_side_knows(quantity: QuantityDivergence) -> list[str]:
    if (quantity.left is None) == (quantity.right is None):
        return []
    return [f"only the {'right' if quantity.left is None else 'left'} run has it"]


def _what_follows(diff: SeriesDivergence, name: str, step: int) -> list[str]:
    """Describe how many of the following steps differ."""
    following = min(diff.left.count, diff.right.count) - step
    if name == TENSORS or diff.steps == 0:
        return []
    length = f"; {_length_in_short(diff)}" if diff.left.count != diff.right.count else ""
    steps = min(diff.steps, following)  # an idle generator's state differs before, too
    return [f"{steps:,} of the {counted(following)} from there on differ{'s' if steps == 1 else ''}{length}"]


def _length_in_short(diff: SeriesDivergence) -> str:
    return f"the runs have {diff.left.count:,} and {counted(diff.right.count)}"


def _how_to_name(diff: SeriesDivergence, name: str) -> list[str]:
    if name not in OF_TENSORS or diff.quantities[name].tensors:
        return []
    keep = trails.MAX_KEPT
    hint = f"digests of single tensors are kept of the first and the last {keep} steps: end both runs right after it"
    return [f"which tensor is not known ({hint})"]
