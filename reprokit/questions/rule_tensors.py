"""Has a replay save the tensors that rules read, and says before what that takes and afterwards what it leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reprokit.core.dtypes import named
from reprokit.core.errors import ArtifactDamaged
from reprokit.model.question import Question, StepSpan, TensorSelection
from reprokit.questions.replays import AnsweredReplay, ask
from reprokit.questions.scratch import scratch
from reprokit.questions.tensors import AddedTensors, add
from reprokit.run.interruption import Interruption
from reprokit.run.replay_plan import require_replayable
from reprokit.run_files import trails
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import RunDirectory
from reprokit.run_files.trails import TrailTensor

KINDS = 2  # of what a parameter's shape tells the bytes: its values and its gradient


def cost(run: RunDirectory, selection: TensorSelection, keyframe: Keyframe | None) -> str:
    """Return what a replay for tensors takes: time as the recording, and bytes as far as shapes tell.

    Raises for a run that cannot be replayed.
    """
    require_replayable(run)
    size = 0
    for trail in trails.read(run):
        for series in trail.series:
            tensors = series.tables[-1][1] if series.tables else []
            steps = max(_steps(rule.steps, series.count) for rule in selection.rules if rule.patterns)
            size += KINDS * steps * sum(map(_size, tensors))
    since = "" if keyframe is None else f" from the keyframe of step {keyframe.step:,}"
    as_long = "" if run.run.duration is None else f" (the recording took {run.run.duration:,.0f} s)"
    return (
        f"{run.path} lacks tensors: replaying it{since} for those that rules read{as_long}; about"
        f" {size / 1e6:,.1f} MB of weights and gradients, and what its modules return, will be added to it"
    )


def _size(tensor: TrailTensor) -> int:
    try:
        return named(tensor.dtype).file_size(math.prod(tensor.shape))
    except ArtifactDamaged:  # a type that is not known counts for nothing
        return 0


def _steps(spans: tuple[StepSpan, ...], count: int) -> int:
    """Return how many of so many steps are in these spans, which do not overlap."""
    ends = [(span, count if span.last is None else min(count, span.last + 1)) for span in spans]
    return sum(len(range(span.first, end, span.every)) for span, end in ends)


def save(
    run: RunDirectory, selection: TensorSelection, interruption: Interruption, keyframe: Keyframe | None
) -> list[str]:
    """Replay a run in silence, and add tensors to it; return what is to be said of what they rest on.

    Raises NotReplayable for a run without a trail, and KeyframeRefused where the replay does not come to the keyframe.
    """
    question = Question(steps=selection.steps, tensors=selection)
    with scratch(".rules-", run.path.parent, run) as place:
        replay = ask(run, question, place / "replay", interruption, keyframe=keyframe, is_silent=True)
        added = add(replay, run, selection)
    return [*_parted(replay), *_unseen(added)]


def _parted(replay: AnsweredReplay) -> Iterator[str]:
    """Yield from where the replay is another run: nothing was saved from there on."""
    for diverged in replay.proof.diverged[:1]:
        changed = f"; changed since the recording: {replay.changes[0]}" if replay.changes else ""
        is_other = f"the replay is not that run from step {diverged.step:,} on, by its {diverged.quantity}"
        yield f"{is_other}: judged until there{changed}"


def _unseen(added: AddedTensors) -> Iterator[str]:
    """Yield how much of the tensors no trail sees, so that only this replay gave it."""
    count = sum(len(names) for names in added.gaps.values())
    if count:
        unseen = f"of {count + added.seen:,} values the trail does not see {count:,}, such as inputs and outputs"
        yield f"{unseen}: they are those of one replay"
