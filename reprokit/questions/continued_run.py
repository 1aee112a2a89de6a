"""Goes on with a recording that was cut off, in a recording of its own that has all of the entropy of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from reprokit.core.errors import NotContinued, ReprokitError, reason
from reprokit.core.messages import say
from reprokit.core.printable import printable
from reprokit.model.plan import Plan, RecordingOptions
from reprokit.model.question import KeyframesAsked, Question, StepSpan, TensorSelection
from reprokit.model.run import Continued, ReachedKeyframe
from reprokit.questions.proof import prove
from reprokit.questions.seek import from_keyframe, seek, skipped_of
from reprokit.run.replay_plan import changed_script, replay_plan
from reprokit.run.skipped_steps import earlier_pids, printed_until, require_skipped
from reprokit.run_files import rundir
from reprokit.run_files.keyframes import SEAL, Keyframe
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.verdict import continued_run

LATEST = 10**15  # a step behind all others
ADVICE = "--from-start replays it whole, and goes on from there"


class KeptByAgents(msgspec.Struct):
    """What the agents of a recording were asked to keep, of which a continuation keeps as much."""

    keyframes: KeyframesAsked | None = None
    tensors: TensorSelection | None = None
    may_stop: bool = False


class KeptPlan(msgspec.Struct):
    """What a recording was asked, as its plan.json and options.json say."""

    question: KeptByAgents | None = None
    recording: RecordingOptions = RecordingOptions()


def last_keyframe(recording: RunDirectory) -> Keyframe:
    """Return the keyframe from which a recording goes on; raises NotContinued with the reason if there is none."""
    chosen = seek(recording, LATEST)
    if chosen.keyframe is None:
        why = printable(chosen.why) or "it has no keyframe, as record --keyframes keeps them"
        raise NotContinued(f"{recording.path}: {why}; {ADVICE}")
    if recording.has(f"{rundir.KEYFRAMES}/{SEAL}"):
        raise NotContinued(f"{recording.path}: its keyframes are of a replay, which a question has left; {ADVICE}")
    edited = changed_script(recording)
    if edited:
        raise NotContinued(f"{recording.path}: a keyframe is for the script as it was ({edited[0]}); {ADVICE}")
    return chosen.keyframe


def continuation_plan(
    recording: RunDirectory, output: Path | None, *, keyframe: Keyframe | None, overwrite: bool = False
) -> Plan:
    """Return the plan that goes on with a recording: a replay up to its end, and a recording from there.

    With a keyframe the replay is fast-forwarded to it.
    """
    plan = replay_plan(recording, output, overwrite=overwrite)
    if recording.run.exit_code == 0:
        raise NotContinued(f"{recording.path} ended by itself (exit status 0): nothing of it is left to be made")
    assert plan.replay_of is not None
    continued = Continued(**msgspec.structs.asdict(plan.replay_of), recorded_at=plan.recorded_at)
    kept = _kept(recording)
    options = {name: getattr(kept.recording, name) for name in RecordingOptions.__struct_fields__}
    if options.pop("push"):
        say("--push is left out, as its place has what the first run wrote: push this run to another one")
    plan = replace(plan, **options)
    question = _question(kept.question)
    if keyframe is None:
        return replace(plan, continues=continued, question=question)
    ranks = keyframe.all_ranks
    if not all(rank.written.lines and rank.shards for rank in ranks):
        raise NotContinued(f"{recording.path}: its keyframes are of an earlier reprokit; {ADVICE}")
    continued = replace(
        continued,
        step=keyframe.step,
        processes={
            rank.process: ReachedKeyframe(series=rank.series, lines=rank.written.lines, numbers=rank.written.numbers)
            for rank in ranks
        },
        printed=printed_until((rank.key, rank.written.printed) for rank in ranks),
        moment=min(rank.moment for rank in ranks),
    )
    try:
        require_skipped(continued)
        continued = replace(continued, pids=earlier_pids(recording))
    except ReprokitError as error:
        raise NotContinued(
            f"{recording.path}: what comes before its keyframe is lost: {reason(error)}; {ADVICE}"
        ) from None
    question = from_keyframe(question or Question(), recording, keyframe)
    if question.tensors is not None:
        question = replace(question, tensors=_behind(question.tensors, keyframe.step))
    if question.keyframes is not None:
        question = replace(question, keyframes=replace(question.keyframes, after=keyframe.step))
    return replace(plan, continues=continued, question=question)


def _kept(recording: RunDirectory) -> KeptPlan:
    """Return what a recording was asked, of which a continuation is asked as much."""
    if not recording.has(rundir.AGENT_PLAN):  # as one that came in a bundle
        return KeptPlan()
    place, document = recording.path / rundir.AGENT_PLAN, recording.decode(rundir.AGENT_PLAN, dict[str, Any])
    if recording.has(rundir.OPTIONS):
        place = recording.path / rundir.OPTIONS
        document["recording"] = recording.decode(rundir.OPTIONS, dict[str, Any])
    try:
        return msgspec.convert(document, KeptPlan, dec_hook=lambda kind, text: kind(text))
    except (msgspec.ValidationError, TypeError) as error:
        raise NotContinued(f"{place}: {reason(error)}") from None


def _question(kept: KeptByAgents | None) -> Question | None:
    """Return the question of a recording's agents, as far as a continuation is asked it too."""
    if kept is None or (kept.keyframes is None and kept.tensors is None):
        return None
    keyframes = kept.keyframes and replace(kept.keyframes, after=0)
    return Question(keyframes=keyframes, tensors=kept.tensors, may_stop=kept.may_stop)


def _behind(tensors: TensorSelection, step: int) -> TensorSelection:
    """Return a selection without the steps that are skipped: what they would save is not the training's."""
    return replace(tensors, rules=tuple(replace(rule, steps=_spans_behind(rule.steps, step)) for rule in tensors.rules))


def _spans_behind(spans: Sequence[StepSpan], step: int) -> tuple[StepSpan, ...]:
    """Return the steps of these spans from a step on; a span of which none is left stays, and has none."""
    return tuple(replace(span, first=max(span.first, step + (span.first - step) % span.every)) for span in spans)


def overlap(recording: RunDirectory, continuation: RunDirectory, keyframe: Keyframe | None) -> str:
    """Return what is known of the steps that both runs have made, in words."""
    try:
        proof = prove(recording, continuation, skipped_of(keyframe))
    except ReprokitError as error:
        return f"the trails cannot be compared: {reason(error)}"
    first = next(iter(proof.diverged), None)
    diverged = None if first is None else (first.step, first.quantity)
    begin = 0 if keyframe is None else keyframe.step
    return continued_run(begin, max(proof.steps.values(), default=0), diverged, proof.results, proof.every)
