"""``reprokit continue``: go on with a recording that was killed."""

from __future__ import annotations

from pathlib import Path

import click

from reprokit.cli import options
from reprokit.cli.output import launch
from reprokit.core.errors import KeyframeRefused
from reprokit.run_files.home import LAST
from reprokit.run_files.rundir import RunDirectory


@click.command(epilog="Example: reprokit continue last --from-start")
@click.argument("run", type=options.RECORDING, default=LAST)
@options.new_run("RUN2")
@options.FROM_START
def command(run: Path, output: Path | None, overwrite: bool, from_start: bool) -> None:
    """Go on with RUN, a recording that was killed, as a recording of its own that has the entropy of both.

    From its last keyframe, or with --from-start from its first step, RUN is replayed to where it was cut off; from
    there on new entropy is recorded. The steps that both have are compared. Exit statuses are those of record.
    """
    from reprokit.core.messages import say
    from reprokit.questions.continued_run import continuation_plan, last_keyframe, overlap
    from reprokit.run.platform_support import require_supported
    from reprokit.run.rundirectory import delete

    require_supported()
    recording = RunDirectory(run)
    keyframe = None if from_start else last_keyframe(recording)
    plan = continuation_plan(recording, output, keyframe=keyframe, overwrite=overwrite)
    if keyframe is not None:
        say(f"from the keyframe of step {keyframe.step:,}; what is printed until then is not the training's")
    try:
        launch(plan, "reprokit", "replay", ended=lambda path: say(overlap(recording, RunDirectory(path), keyframe)))
    except KeyframeRefused as refused:
        if refused.run is not None:
            delete(refused.run)
        raise
