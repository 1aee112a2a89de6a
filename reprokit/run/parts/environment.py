"""Collects what a run ran on and with: machine, packages, files; says what a replay has otherwise."""

from __future__ import annotations

from pathlib import Path

from reprokit.run import host
from reprokit.run.part import Closing, Launch, RunPart
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory


class EnvironmentPart(RunPart):
    """The surroundings of a run, collected beside it."""

    _collector: host.EnvironmentCollector

    def started(self, launch: Launch) -> None:
        program, arguments = launch.command.program, launch.command.arguments
        directory, declared = self._plan.working_directory, self._plan.data
        self._collector = host.EnvironmentCollector(launch.path, program, arguments, directory, declared)

    def finish(self, closing: Closing) -> None:
        environment = self._collector.complete(closing.agent, closing.interrupted)
        rundir.write_json(closing.path / rundir.ENVIRONMENT, environment)
        closing.run.environment = rundir.seal_file(closing.path / rundir.ENVIRONMENT)
        if self._plan.replay_of is None:
            return
        from reprokit.run import compute_pins, data, replay_plan

        recording = RunDirectory(Path(self._plan.replay_of.path))
        recorded = recording.environment() or {}
        has_failed = bool(closing.ended.exit_code) and recording.run.exit_code == 0
        for change in replay_plan.later_changes(recorded, environment):
            if has_failed:  # perhaps for this
                closing.say_changed(change)
            elif change not in closing.run.changed:
                closing.run.changed.append(change)
        for change in data.changes_between(recorded.get("data"), environment.data):
            closing.say_changed(change)
        for change in compute_pins.unmet(recording, RunDirectory(closing.path)):  # in spite of the pins
            closing.say_changed(change)


PART = EnvironmentPart
