"""Compares how the runs ended, and shows when they ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.difference import Difference, Role, Verdict, compared, group, information, missing
from reprokit.model.plan import REPLAY
from reprokit.model.run import FAILED, FINISHED, RunFile
from reprokit.verify.categories.match import RunPair
from reprokit.verify.read.normalization import TIMES


def compare(runs: RunPair) -> Difference:
    """Compare exit code or signal."""
    left, right = runs.files
    ends = ended(left), ended(right)
    if not any(ends):
        unknown = Difference("status", Verdict.NOT_RECORDED, detail="neither launcher lived to see the end")
        return group("exit status", (unknown,))
    if not all(ends):
        side = "right" if ends[0] else "left"
        leaf = missing("status", *ends, f"the {side} run did not come to its end: its launcher died")
        return group("exit status", (replace(leaf, lacking=None, role=Role.END),))
    leaf = compared("status", *ends, _meaning(left, right))
    return group("exit status", (replace(leaf, role=Role.END if leaf.verdict.differs else Role.OWN),))


def _meaning(left: RunFile, right: RunFile) -> str:
    """Describe two different ends."""
    if failed(left) == failed(right):
        return "the two runs ended differently"
    run, side = (left, "left") if failed(left) else (right, "right")
    return f"the {side} run {'was killed' if run.signal is not None else 'failed'}"


def ended(run: RunFile) -> str:
    """Return how a run ended, in words; empty if unknown."""
    if run.status == FAILED:
        return "failed to start"
    if run.status != FINISHED:
        return ""
    if run.signal is not None:
        return f"killed by {run.signal}"
    return f"exit code {run.exit_code}"


def end_words(run: RunFile) -> str:
    """Return how a failed run ended, as the end of a sentence."""
    return f"was {ended(run)}" if run.signal is not None else f"failed with {ended(run)}"


def failure(run: RunFile) -> str:
    """Return how a run failed, in short; empty if it did not."""
    if not failed(run):
        return ""
    return ended(run) if run.exit_code is None else f"status {run.exit_code}"


def failed(run: RunFile) -> bool:
    """Return whether the run is known to have failed."""
    return run.status == FAILED or (run.status == FINISHED and (run.signal is not None or run.exit_code != 0))


def times(runs: RunPair) -> Difference:
    """Show when the runs started and how long they took; this is never compared."""
    left, right = runs.files
    runs.normalizations.ignore(TIMES, (left.started, left.duration), (right.started, right.duration))
    started = information("started", left.started, right.started)
    duration = information("duration", seconds(left.duration), seconds(right.duration))
    return group("times", (started, duration), "shown, never compared")


def date_problems(*runs: RunFile) -> Iterator[str]:
    """Yield what cannot be of the dates of these runs: a clock was set meanwhile, or somebody changed them."""
    for run in runs:
        if run.started and run.ended and run.ended < run.started:
            yield f"the {_kind(run)} {run.run_id[:8]} is dated {run.started} to {run.ended}: {_DATED}"
    for replay in runs:
        recordings = (run for run in runs if replay.replay_of is not None and replay.replay_of.run_id == run.run_id)
        for recording in recordings:
            end = recording.ended or recording.started
            if replay.started and replay.started < end:
                yield f"the replay is dated {replay.started}, before its recording ended at {end}: {_DATED}"


_DATED = "a clock was set, or a date was changed"


def _kind(run: RunFile) -> str:
    return "replay" if run.kind == REPLAY else "run"


def seconds(duration: float | None) -> str:
    """Return a duration as text for users."""
    if duration is None:
        return ""
    if duration < 120:
        return f"{duration:.2f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def notes(left: RunFile, right: RunFile) -> Iterator[str]:
    """Yield that both runs failed alike, and dates that cannot be."""
    if failed(left) and failed(right) and ended(left) == ended(right):
        yield f"both runs failed: {ended(left)}"
    yield from date_problems(left, right)
