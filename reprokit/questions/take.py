"""Takes the snapshot of one step of a past run: a replay saves it, and the trail proves that the replay is that run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from reprokit.capture import files
from reprokit.core.errors import SnapshotNotTaken, refused_as
from reprokit.core.printable import printable
from reprokit.model.plan import CapturePlan
from reprokit.model.question import Question, StepRange
from reprokit.model.run import FINISHED, SnapshotFacts
from reprokit.model.run_warning import NOT_WHOLE
from reprokit.questions.replays import AnsweredReplay, ask
from reprokit.questions.scratch import scratch
from reprokit.run import agent_lines
from reprokit.run.interruption import Interruption
from reprokit.run_files import trails
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import RunDirectory

TENSORFLOW = "tensorflow"
FRAMEWORKS = {"torch", TENSORFLOW}
MAX_PROCESSES = 1000
INSTEAD = "'reprokit replay --on-nan capture' captures the first bad step of JAX"


class TakenSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was taken, and what the trail says of the replay that it is from."""

    paths: list[Path]
    file: files.SnapshotFile  # the first of them
    compared: int  # steps of the trail that both have
    every: int  # of how many steps the trail has one


def steps_to_replay(recording: RunDirectory, step: int) -> StepRange:
    """Return the steps from this one to that up to which a replay must go, so that the trail proves this one.

    Raises SnapshotNotTaken where no replay can be proved.
    """
    series = [each for trail in trails.read(recording) for each in trail.series]
    others = sorted({each.framework for each in series} - FRAMEWORKS)
    if others:
        names = "PyTorch, TensorFlow or Keras"
        raise SnapshotNotTaken(f"{recording.path} takes steps of {printable(others[0])}, not of {names}; {INSTEAD}")
    count = max((each.count for each in series), default=0)
    if not count:
        raise SnapshotNotTaken(f"{recording.path} has no trail of steps, by which a replay is known")
    if step > count or (step == count and recording.run.status == FINISHED and recording.run.exit_code == 0):
        raise SnapshotNotTaken(f"{recording.path} has no step {step:,}: its last one is {count - 1:,}")
    proving = [_next_seen(each, min(step, count - 1)) for each in series if each.count >= min(step + 1, count)]
    if None in proving:
        raise SnapshotNotTaken(
            f"nothing would prove step {step:,}: the trail of {recording.path} has one in {series[0].every:,} steps,"
            " and none behind it, as the run was ended"
        )
    # TensorFlow's snapshot is saved behind its step, which must not end the replay.
    behind = step + any(each.framework == TENSORFLOW for each in series)
    return StepRange(first=step, last=max([behind, *[number for number in proving if number is not None]]))


def _next_seen(series: trails.Series, step: int) -> int | None:
    """Return the first step from this one on that the trail did not pass over."""
    return next((each.number for each in series.steps(step) if not each.passed), None)


def take(
    recording: RunDirectory, steps: StepRange, target: Path, interruption: Interruption, keyframe: Keyframe | None
) -> TakenSnapshot:
    """Save the snapshot of the first of these steps as the directory `target`; of several processes, in it.

    The last one is that to which the replay goes: see steps_to_replay().
    """
    if os.path.lexists(target):
        raise SnapshotNotTaken(f"{target} is there already; choose another directory with -o")
    question, step = Question(steps=steps), steps.first
    begin = 0 if keyframe is None else keyframe.step
    capture = CapturePlan(take=step, take_from=begin, max_snapshots=MAX_PROCESSES)
    with _beside(target, recording) as directory:
        replay = ask(
            recording, question, directory / "replay", interruption, is_silent=True, keyframe=keyframe, capture=capture
        )
        facts = _saved(replay, step)
        _require_that_run(replay, step)
        _move([files.place(replay.run.path, each) for each in facts], target)
    paths = [target] if len(facts) == 1 else [target / each.name for each in facts]
    compared = max(replay.proof.steps.values())
    return TakenSnapshot(
        paths=paths, file=files.SnapshotFile(str(paths[0])), compared=compared, every=replay.proof.every
    )


@contextmanager
def _beside(target: Path, recording: RunDirectory) -> Iterator[Path]:
    """Make a temporary directory on the disk of a path, so that nothing must be copied."""
    with ExitStack() as stack:
        refused = refused_as(
            SnapshotNotTaken, f"nothing can be written beside {target}", "choose another directory with -o"
        )
        with refused:
            place = stack.enter_context(scratch(".take-", target.parent, recording))
        yield place


def _saved(replay: AnsweredReplay, step: int) -> list[SnapshotFacts]:
    """Return the facts of the snapshots that a replay saved."""
    saved = replay.run.run.snapshots
    if not saved:
        code = replay.launch_result.ended.exit_code
        warnings = [*replay.run.run.warnings, *agent_lines.read(replay.run.path).warnings]
        why = [warning.text for warning in warnings if warning.code == NOT_WHOLE]
        why += [files.UNAVAILABLE.get(each.reason, "") for each in replay.run.run.captures_unavailable]
        raise SnapshotNotTaken(
            f"the replay came to no update of step {step:,}, or could not save it (exit status {code})"
            + "".join(f"; {printable(text)}" for text in why[:1])
        )
    damaged = next((facts for facts in saved if facts.problem), None)
    if damaged is not None:
        raise SnapshotNotTaken(f"the replay left no whole snapshot: {printable(damaged.problem)}")
    of_processes = {facts.process: facts for facts in saved}  # a second one is of what the update itself did
    return sorted(of_processes.values(), key=lambda facts: facts.began_here is False)  # another rank knows the cause


def _require_that_run(replay: AnsweredReplay, step: int) -> None:
    """Raise SnapshotNotTaken unless the trail proves the replay up to the step."""
    diverged = next(iter(replay.proof.diverged), None)
    if diverged is not None and diverged.step <= step:
        changes = "".join(f"; changed since the recording: {printable(change)}" for change in replay.changes[:1])
        raise SnapshotNotTaken(
            f"the replay is not that run from step {diverged.step:,} on, by its {diverged.quantity}{changes}"
        )
    compared = max(replay.proof.steps.values(), default=0)
    if not compared or compared < step:
        raise SnapshotNotTaken(f"only {compared:,} steps of the trail could be compared with the replay's")


def _move(snapshots: list[Path], target: Path) -> None:
    """Move snapshots to their place, which is nothing yet."""
    with refused_as(SnapshotNotTaken, f"{target} cannot be written", "choose another directory with -o"):
        if len(snapshots) == 1:
            os.rename(snapshots[0], target)
            return
        target.mkdir(mode=0o700)
        for snapshot in snapshots:
            shutil.move(snapshot, target / snapshot.name)
