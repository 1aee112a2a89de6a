"""Leaves keyframes of an asked run behind, for the next question: those of a replay that is proved to be that run."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import msgspec

from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import KeyframeRefused, ReprokitError, reason
from reprokit.core.messages import say
from reprokit.core.printable import listed
from reprokit.model.question import KEYFRAME_BYTES, KeyframesAsked, Question
from reprokit.model.run import FINISHED
from reprokit.questions.replays import AnsweredReplay, ask
from reprokit.questions.seek import FRAMEWORKS
from reprokit.run.interruption import Interruption
from reprokit.run_files import keyframes, rundir, trails
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import RunDirectory

LEAST = 100  # steps: a replay of fewer takes no time
SHARE = 4  # of the steps until the first that is asked for, and of the free disk
BOUND = "a quarter of the free disk, at most 2 GiB"
MOST = 32  # keyframes of a question, but for those at the steps before the first


def and_keyframes(question: Question, recording: RunDirectory) -> Question:
    """Return the question, which also keeps keyframes where a fast-forward could use them and there are none."""
    try:
        if os.path.lexists(recording.path / rundir.KEYFRAMES) or recording.run.status != FINISHED:
            return question
        trails_of_run = list(trails.read(recording))
        series = [each for trail in trails_of_run for each in trail.series]
    except ReprokitError:
        return question
    frameworks = {each.framework for each in series}
    is_of_one = len({each.process for each in series}) == len(frameworks) == 1
    if not (is_of_one and frameworks <= FRAMEWORKS.keys()):
        return question
    last = min(question.steps.last or 1 << 60, max(each.count for each in series))
    if last < LEAST:
        return question
    steps = max(LEAST // SHARE, question.steps.first // SHARE, last // MOST)
    room = min(KEYFRAME_BYTES, shutil.disk_usage(recording.path).free // SHARE)
    return msgspec.structs.replace(question, keyframes=KeyframesAsked(steps=steps, max_bytes=room, bound=BOUND))


def ask_from(
    keyframe: Keyframe | None,
    recording: RunDirectory,
    question: Question,
    place: Path,
    interruption: Interruption,
    *,
    is_silent: bool | None = None,
    needs_proof: bool = True,
) -> AnsweredReplay:
    """Ask a replay that starts at a keyframe; from the first step if that is refused and only a question left it."""
    how = partial(ask, interruption=interruption, is_silent=is_silent, needs_proof=needs_proof)
    if keyframe is None:
        return how(recording, and_keyframes(question, recording), place)
    try:
        return how(recording, question, place, keyframe=keyframe)
    except KeyframeRefused as error:
        if not os.path.lexists(recording.path / rundir.KEYFRAMES / keyframes.SEAL):
            raise
        say(f"from the first step: {error}")
        return how(recording, question, place.with_name(f"{place.name}-again"))


def leave(replay: AnsweredReplay, recording: RunDirectory) -> None:
    """Move a replay's keyframes to its recording, if it was that run in all steps that it took; say which."""
    source, target = replay.run.path / rundir.KEYFRAMES, recording.path / rundir.KEYFRAMES
    if replay.keyframe is not None or replay.changes or not replay.proof.holds or not source.is_dir():
        return
    if os.path.lexists(target):  # another question has left some meanwhile
        return
    try:
        for name in bounded_names(source, keyframes.INDEX):
            _keep_proved(source / name, replay)
        kept = keyframes.read(replay.run.path)
        if not kept:
            return
        keyframes.write_seal(replay.run.path)
        os.rename(source, target)
    except (OSError, ReprokitError) as error:
        say(f"no keyframes were left in {recording.path}: {reason(error)}")
        return
    steps = [f"{keyframe.step:,}" for keyframe in kept]
    say(f"keyframes of {len(steps)} steps are left in {target}, for the next question: {listed(steps, 5)}")


def _keep_proved(index: Path, replay: AnsweredReplay) -> None:
    """Write an index again without keyframes whose steps were not compared, or from which nobody could start."""
    partial = index.with_suffix(".partial")
    compared = replay.proof.steps
    with (
        open(open_file(index), "rb") as file,
        open(partial, "xb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as new,
    ):
        process = ""
        for number, text in enumerate(iter(lambda: file.readline(keyframes.MAX_LINE), b"")):
            line = msgspec.json.decode(text, type=keyframes.KeyframeLine) if text.endswith(b"\n") else None
            if line is None:
                break
            process = line.process if not number else process
            if line.keyframe is not None and any(
                count > compared.get((process, series), 0) for series, count in line.series.items()
            ):
                break
            if not (line.lacks or line.hindrance):
                new.write(text)
    os.replace(partial, index)
