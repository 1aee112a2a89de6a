"""Looks through the modules of the run's processes for what takes entropy without a request."""

from __future__ import annotations

from reprokit.core.messages import say
from reprokit.model.plan import RECORD
from reprokit.run import modules
from reprokit.run.part import Closing, RunPart


class ModulesPart(RunPart):
    """The modules that were loaded in a run."""

    def finish(self, closing: Closing) -> None:
        plan, run = self._plan, closing.run
        found = modules.collect(
            closing.path,
            plan.working_directory,
            plan.record_crypto,
            closing.interrupted,
            is_supervised=run.supervisor is not None and run.supervisor.is_on,
            calendar=run.calendar,
            may_use=closing.agent.may_use,
        )
        run.uncovered.extend(found.uncovered)
        for refusal in found.refused:
            closing.warn(refusal.text, "not-covered")
        for finding in found.noted if plan.kind == RECORD else ():
            say(finding.text)
        if found.interrupted:
            closing.warn("not every module was looked through for RDRAND and RDSEED: interrupted", "search-interrupted")


PART = ModulesPart
