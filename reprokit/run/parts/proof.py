"""Runs strace beside a recording and accounts for every request to the kernel: --prove."""

from __future__ import annotations

import msgspec

from reprokit.core.messages import say
from reprokit.run import environment, prove
from reprokit.run.command import Command
from reprokit.run.part import Closing, Launch, Preparation, RunPart
from reprokit.run_files import rundir


class ProofPart(RunPart):
    """The strace of a run, and what it proves."""

    _tracing: prove.Tracing

    def variables(self, _command: Command, variables: dict[str, str]) -> dict[str, str]:
        return environment.without_leak_search(variables)

    def prepare(self, preparation: Preparation) -> None:
        self._tracing = prove.find(preparation.new_run.place, preparation.paths.shim)

    def arm(self, launch: Launch) -> None:
        launch.executed, launch.variables = self._tracing.wrap(launch.executed, launch.variables)
        launch.is_traced = True

    def finish(self, closing: Closing) -> None:
        lost = (program.identity for program in closing.run.out_of_reach)
        closing.run.proof = self._tracing.proof(closing.path / rundir.ENTROPY, lost)
        closing.later.append(lambda: _report(closing))


def _report(closing: Closing) -> None:
    """Report the proof, once it is known what the run drew from without a request."""
    run = closing.run
    if run.proof is not None:
        ticks = [source.text for source in run.uncovered if source.source == "ticks"]
        run.proof = msgspec.structs.replace(run.proof, without_requests=ticks)
        say(f"proof: {prove.in_words(run.proof)}")


PART = ProofPart
