"""Chooses the keyframe from which a question is answered, and refuses answers that the trail does not prove from it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from reprokit.core.bounds import open_file
from reprokit.core.errors import KeyframeRefused, ReprokitError, UsageError, reason
from reprokit.core.printable import printable
from reprokit.model.question import KeyframeStart, Question, RankKeyframe
from reprokit.model.run import FINISHED
from reprokit.questions.proof import ReplayProof
from reprokit.run_files import console, keyframes, rundir, trails
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import RunDirectory

ANSWER, RESTORED = "keyframe", "restored"
MAX_REASON = 1000
STDERR = console.STREAMS.index("stderr")
ADVICE = "--from-start replays from the first step"
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}  # whose trainings are fast-forwarded


class Seek(msgspec.Struct, frozen=True):
    """The keyframe from which a replay answers; or, without one, why it starts from the beginning."""

    keyframe: Keyframe | None = None
    why: str = ""  # a recording without keyframes gives no reason


def seek(recording: RunDirectory, first: int) -> Seek:
    """Return the last keyframe before a step; none where no fast-forward would come there."""
    try:
        kept = keyframes.read(recording.path, recording.run.keyframes)
        if not kept:
            return Seek()
        trails_of_run = list(trails.read(recording))
        series = [each for trail in trails_of_run for each in trail.series]
    except ReprokitError as error:
        return Seek(why=reason(error))
    usable = [keyframe for keyframe in kept if keyframe.step <= first]
    if not usable:
        return Seek(why=f"its first keyframe is that of step {min(keyframe.step for keyframe in kept):,}")
    processes, ranks = {each.process for each in series}, max(keyframe.ranks for keyframe in kept)
    if len(processes) != ranks:
        together = f"for the {ranks:,} ranks of a training together" if ranks > 1 else "for one"
        return Seek(why=f"{len(processes):,} processes take steps, and a fast-forward is {together}")
    others = sorted({each.framework for each in series} - FRAMEWORKS.keys())
    if others:
        known = " and ".join(FRAMEWORKS.values())
        return Seek(why=f"it takes steps of {printable(others[0])}, and a fast-forward is for {known}")
    if len({each.framework for each in series}) > 1:
        return Seek(why="it takes steps of several frameworks, and a fast-forward is for one")
    steps = ({keyframe.step for keyframe in usable if keyframe.process == process} for process in processes)
    common = set.intersection(*steps) if processes else set()
    if not common:
        return Seek(why="its ranks have no keyframe of the same step, as record --keyframes Nsteps keeps them")
    of_step = {keyframe.process: keyframe for keyframe in usable if keyframe.step == max(common)}
    nearest, *further = (of_step[process] for process in sorted(processes))
    hindrance = next((keyframe.hindrance for keyframe in (nearest, *further) if keyframe.hindrance), "")
    return Seek(why=printable(hindrance)) if hindrance else Seek(replace(nearest, others=tuple(further)))


def from_keyframe(question: Question, recording: RunDirectory, keyframe: Keyframe) -> Question:
    """Return the question, asked of a replay that is fast-forwarded to a keyframe."""
    ranks = keyframe.all_ranks if keyframe.others else ()
    start = KeyframeStart(
        directory=str((recording.path / rundir.KEYFRAMES).absolute()),
        key=keyframe.key,
        step=keyframe.step,
        updates=keyframe.updates,
        series=keyframe.series,
        ranks=tuple(RankKeyframe(process=rank.process, key=rank.key, updates=rank.updates) for rank in ranks),
    )
    return replace(question, from_keyframe=start)


def skipped_of(*started: Keyframe | None) -> dict[str, int]:
    """Return how many steps of each series replays left out that started from these keyframes."""
    skipped: dict[str, int] = {}
    for keyframe in started:
        ranks = () if keyframe is None else keyframe.all_ranks
        for series, count in (each for rank in ranks for each in rank.series.items()):
            skipped[series] = max(count, skipped.get(series, 0))
    return skipped


def require_step(recording: RunDirectory, step: int) -> None:
    """Raise UsageError if a run has ended before a step, as far as its trail tells: one without gaps."""
    counts: dict[tuple[str, int], int] = {}
    for trail in trails.read(recording):
        for series in trail.series:
            is_whole = series.framework in FRAMEWORKS and not trail.gave_up
            if not is_whole or recording.run.status != FINISHED:
                return
            process = trail.process, trail.incarnation
            counts[process] = counts.get(process, 0) + series.count
    if counts and step > max(counts.values()):
        raise UsageError(f"{recording.path} has {max(counts.values()):,} steps, by its trail: none is step {step:,}")


def require_restored(replay: RunDirectory, keyframe: Keyframe, status: int | None) -> None:
    """Raise KeyframeRefused unless all of the keyframe's state was put in."""
    answer = _answer(replay)
    if answer != RESTORED:
        why = printable(answer) if answer else f"the script ended before it (exit status {status}){end_of(replay)}"
        raise KeyframeRefused(f"no answer from the keyframe of step {keyframe.step:,}: {why}; {ADVICE}")


def end_of(replay: RunDirectory) -> str:
    """Return what is known of why a replay ended: that its disk was full, or what its processes said last."""
    try:
        for trail in trails.read(replay):
            if trail.gave_up:
                return f": its trail broke off, as {trail.gave_up}"
        printed = [console.read(replay, head) for head in console.heads(replay).values()]
    except (OSError, ReprokitError):
        return ""
    texts = [console.text([*each.first, *each.last], STDERR) for each in printed]
    said = next((text.splitlines()[-1] for text in texts if text.strip()), b"").decode("utf-8", "replace")
    return f": {printable(said[:MAX_REASON])}" if said else ""


def require_proof(proof: ReplayProof, keyframe: Keyframe, first: int) -> None:
    """Raise KeyframeRefused unless the trail proves the steps from the keyframe to the first that is asked for."""
    place = f"from the keyframe of step {keyframe.step:,}"
    diverged = next(iter(proof.diverged), None)
    if diverged is not None and diverged.step <= max(first, keyframe.step):
        raise KeyframeRefused(
            f"no answer {place}: the replay is not that run at step {diverged.step:,}, by its {diverged.quantity}"
            f"{_lacking(keyframe)}; {ADVICE}"
        )
    has_steps = any(count > keyframe.series.get(name, 0) for (_, name), count in proof.steps.items())
    if not (has_steps and proof.results):  # a trail with digests of some steps only may have none behind it
        raise KeyframeRefused(f"no answer {place}: the trail has no digests of steps behind it to compare; {ADVICE}")


def _lacking(keyframe: Keyframe) -> str:
    return f" (the keyframe lacks {printable(keyframe.lacks[0])})" if keyframe.lacks else ""


def _answer(replay: RunDirectory) -> str:
    path = replay.path / rundir.ANSWERS / ANSWER
    try:
        with open(open_file(path), "rb") as file:
            return file.read(MAX_REASON).decode("utf-8", "replace")
    except (OSError, ReprokitError):
        return ""
