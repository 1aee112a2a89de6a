"""Explains a captured step by a replay of its recording, which reaches the step with its operators watched.

The step is then the script's own computation, whatever its batches are. If no replay is possible, the snapshot alone
is used: its state and batch are restored in the script's first step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from reprokit.capture.files import SnapshotFile
from reprokit.core.errors import NotReplayable, NotTheRun, ReprokitError
from reprokit.core.untrusted_json import object_in
from reprokit.model.plan import RUN, RedoPlan, ReplayStart
from reprokit.questions.replays import silence_output
from reprokit.run import redo
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import execute
from reprokit.run.redo import RedoRequest
from reprokit.run.replay_plan import replay_plan
from reprokit.run.starting_files import started_from
from reprokit.run_files.home import recording_of
from reprokit.run_files.rundir import RunDirectory


def recording_with(snapshot: Path) -> RunDirectory | None:
    """Return the recording of the run or replay that saved this snapshot; None if nothing was recorded."""
    try:
        run = RunDirectory(snapshot.parent.parent)
        return None if run.run.kind == RUN else RunDirectory(recording_of(run))
    except ReprokitError:
        return None


def explain(
    request: RedoRequest, recording: RunDirectory, interruption: Interruption, report: Callable[[str], object]
) -> dict[str, Any]:
    """Return what a replay observed of the step; else, of the script's first step with the snapshot restored."""
    file = SnapshotFile(str(request.snapshot))
    try:
        return _in_place(request, file, recording, interruption, report)
    except ReprokitError as error:
        reason = f"explained from the snapshot alone: {error}"
    report(reason)
    result = redo.redo(request, report)
    return {**result, "problems": [*(result.get("problems") or []), reason]}


def _in_place(
    request: RedoRequest,
    file: SnapshotFile,
    recording: RunDirectory,
    interruption: Interruption,
    report: Callable[[str], object],
) -> dict[str, Any]:
    run = recording.run
    if (request.command, request.working_directory) != (tuple(run.command), Path(run.working_directory)):
        raise NotReplayable("another command or directory was given than was recorded")
    report(f"replaying the recording up to step {file.facts.step}, to watch its operators")
    with tempfile.TemporaryDirectory(prefix="reprokit-explain-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        plan = replay_plan(recording, place / "run", start=ReplayStart.FOUND_AND_BACK)
        if plan.capture is None:
            raise NotReplayable(f"{recording.path} was not recorded with --on-nan")
        result = place / "result.json"
        redo_plan = RedoPlan(
            mode=request.mode, snapshot=request.snapshot, result=result, progress=place / "progress", in_place=True
        )
        with started_from(plan, place / "run") as start:
            plan = replace(plan, capture=replace(plan.capture, redo=redo_plan))
            execute(replace(plan, start=ReplayStart.HERE, started_from=start), interruption, silence_output)
        outcome = redo.read_result(result)
    if outcome is None or not outcome.get("reproduced"):
        raise NotTheRun(f"a replay of {recording.path} did not come to this step")
    if object_in(outcome, "gradients").get("different") or object_in(outcome, "loss").get("equal") is False:
        raise NotTheRun(f"a replay of {recording.path} came to another step {file.facts.step} than was captured")
    if not (outcome.get("operation") or outcome.get("where")):
        raise NotTheRun("no operator was seen to turn finite values into others in the replay")
    return outcome
