"""Describes the result of locate in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reprokit.core.printable import printable
from reprokit.model.divergence import MAX_LISTED, LocatedCall, LocatedDivergence, ProcessDivergence
from reprokit.verify.verdict import beside_trail_notes


def print_lines(located: LocatedDivergence) -> None:
    """Print it on stdout."""
    print(*lines(located), sep="\n")


def lines(located: LocatedDivergence) -> Iterator[str]:
    """Yield the lines to print."""
    if not located.processes:
        yield _same(located)
        yield from (f"  {printable(note, 400)}" for note in beside_trail_notes("the runs", located.beside_trail))
    for number, process in enumerate(located.processes[:MAX_LISTED]):
        yield from _process(located, process, is_first=number == 0)
    if located.compiled is not None:
        call = located.compiled
        where = f"within {call_in_words(call)}, call {call.position} of step {call.step}"
        yield f"  {where}: of eager replays, which the trails find to be the runs until then"
    yield from (f"  note: {printable(note, 400)}" for note in located.notes[:MAX_LISTED])


def _same(located: LocatedDivergence) -> str:
    pairs = f"{located.pairs} pair{'s' if located.pairs != 1 else ''} of replays"
    calls = f"results of {located.calls:,} calls of operators in steps {located.steps.first} to {located.steps.last}"
    proved = ", each of which is its recording" if located.proved else ""
    of_steps = f", and {', '.join(located.results)} of each step that the trails have" if located.results else ""
    return f"the runs do not part in {pairs}{proved}: compared were {calls}{of_steps}"


def _process(located: LocatedDivergence, process: ProcessDivergence, is_first: bool) -> Iterator[str]:
    call = process.call
    place = f"{call_in_words(call)}, call {call.position} of step {call.step}"
    thread = f"process {printable(process.process, 200)}, thread {printable(call.thread, 80)}"
    if process.kind == "result":
        yield f"first divergent operator: {place}, {thread}"
        outputs = "outputs differ" + (_outputs(located) if is_first else "")
        yield f"  inputs equal{_inputs(call)}; {outputs}"
        varying = f"{process.varying:,} of {process.calls:,} calls gave another result on equal inputs"
        yield f"  {varying}; what follows differs because of it"
    elif process.kind == "outside":
        yield f"changed outside of operators, before {place}, {thread}"
        before = f"; the last: {call_in_words(process.before)}" if process.before else ""
        generator = ", or the state of the random generator that it draws from," if process.draws else ""
        inputs = f"a tensor or number that goes into it{_inputs(call)}{generator}"
        yield f"  {inputs} differs, and no call before it gave another result{before}"
        seeds = "another seed, or draws outside of operators; then " if process.draws else ""
        writers = "NumPy, a data pipeline, a custom kernel, a collective or uninitialized memory"
        yield f"  look for {seeds}another value in the script, or {writers} that writes to it"
    elif process.more or process.other is None:
        side = "second" if process.more > 0 else "first"
        count = f"{abs(process.more):,} more call{'s' if abs(process.more) != 1 else ''}"
        yield f"another path was taken: {count} in the {side} replay from {place}, {thread}"
    else:
        yield f"another path was taken: the first replay calls {place}{_inputs(call)}, {thread}"
        yield f"  the second one calls {call_in_words(process.other)}{_inputs(process.other)}"
    if is_first and located.known:
        cures = f"; cure: --patch {' or '.join(located.cures)}" if located.cures else ""
        yield f"  Known: {', '.join(located.known)}{cures}"


def _outputs(located: LocatedDivergence) -> str:
    if located.outputs is None:
        return ""
    ulp = located.outputs.largest_ulp
    size = "" if ulp is None else f", at most {ulp:,} ULP" if ulp else ", in signs of zeros or payloads of NaNs only"
    return f": {located.outputs.differing:,} of {located.outputs.elements:,} elements{size}"


def _inputs(call: LocatedCall) -> str:
    shown = ", ".join(call.inputs[:6]) + (", ..." if len(call.inputs) > 6 else "")
    return f" ({printable(shown, 300)})" if shown else ""


def without_effect(process: ProcessDivergence, results: Sequence[str]) -> str:
    """Return the words for a call that is not equal in two replays whose trails are."""
    call = process.call
    what = "another path was taken" if process.kind == "path" else "what went into it was changed outside of operators"
    where = f"from {call_in_words(call)}, call {call.position} of step {call.step}"
    return f"not equal {where}: {what}, without effect on {', '.join(results) or 'what is'} in the trails"


def call_in_words(call: LocatedCall) -> str:
    """Return the operator, and the user's line that caused it."""
    name = printable(call.operator, 200)
    if not call.where:
        return f"{name}, in no code of the user's"
    file, line, _ = call.where[0]
    text = printable(call.text, 80)
    phase = {"backward": "backward of ", "update": "update by "}.get(call.phase, "")
    node = f" ({printable(call.node, 80)})" if call.node else ""
    source = f"{phase}{text}, " if text else phase
    return f"{name}, {source}{printable(Path(file).name, 200)}:{line}{node}"
