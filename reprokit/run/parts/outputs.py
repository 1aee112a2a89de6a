"""Collects the files that the command has made or changed."""

from __future__ import annotations

from pathlib import Path

from reprokit.core.messages import say
from reprokit.model.outputs import OutputsFile
from reprokit.model.run import ReplayOf
from reprokit.run import outputs
from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

MAX_NAMED = 10  # private keys named in one warning


class OutputsPart(RunPart):
    """The outputs of a run, and the programs that may still write some."""

    def finish(self, closing: Closing) -> None:
        closing.attempt(lambda: self._collect(closing))
        if closing.run.outliving:
            say(closing.run.outliving_in_words)

    def _collect(self, closing: Closing) -> None:
        plan, path = self._plan, closing.path
        collected = outputs.collect(
            path,
            plan.working_directory,
            closing.interrupted,
            plan.keep_outputs,
            plan.moved,
            plan.command,
            (*plan.aside, *filter(None, [closing.snapshot_fallback])),
            [interval for commands in closing.user_commands for interval in commands.intervals],
            is_shared=path.parent.name == rundir.HOSTS,
        )
        rundir.write_json(path / rundir.OUTPUTS, collected)
        closing.run.outputs = rundir.seal_file(path / rundir.OUTPUTS)
        notes = (*collected.not_compared, collected.empty_directories, collected.not_restorable)
        for note in filter(None, notes):
            say(f"outputs: {note}")
        if any(file.private_key for file in collected.files):
            closing.warn(_private_key_warning(collected, plan.replay_of), "private-keys")


def _private_key_warning(collected: OutputsFile, replay_of: ReplayOf | None) -> str:
    """Return the warning that names private keys among the outputs, and whether a replay made one again."""
    keys = [file for file in collected.files if file.private_key]
    names = ", ".join(file.path for file in keys[:MAX_NAMED]) + (", ..." if len(keys) > MAX_NAMED else "")
    text = f"private keys are among the outputs, of which only digests are kept: {names}"
    if replay_of is None:
        return f"{text}; a replay may make the same keys again"
    recorded = RunDirectory(Path(replay_of.path)).outputs()
    recorded_digests = {file.digest for file in recorded.files if file.private_key} if recorded is not None else set()
    remade = any(file.digest and file.digest in recorded_digests for file in keys)
    return f"{text}; {'a key of the recording was made again' if remade else 'none of them is one of the recording'}"


PART = OutputsPart
