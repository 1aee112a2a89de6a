"""States whether the agent was loaded, and what it warns of."""

from __future__ import annotations

import os
import re

import msgspec

from reprokit import entropy
from reprokit.model import states
from reprokit.model.plan import RUN
from reprokit.model.run_warning import by_cause
from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir

TOO_OLD = re.compile(r"python(2(\.\d+)?|3\.[0-6])m?")  # interpreters that the agent does not support


class AgentPart(RunPart):
    """The agents of a run's processes."""

    def finish(self, closing: Closing) -> None:
        run, facts = closing.run, closing.agent
        run.agent = states.LOADED if facts.loaded else self._absent(closing)
        unavailable = facts.captures_unavailable.items()
        run.captures_unavailable = [msgspec.structs.replace(each, processes=count) for each, count in unavailable]
        for warning in by_cause(facts.warnings):
            if not warning.said:
                closing.show(f"the agent: {warning.text}", warning.code)
        if self._plan.mode == RUN and self._plan.capture is not None and not facts.loaded:
            closing.warn("nothing was watched: no Python process of the run began the agent", "agent-not-loaded")

    def _absent(self, closing: Closing) -> states.Loading:
        if self._plan.untouched:
            return states.not_loaded("the command was left untouched", "not-observed")
        if closing.disk_is_full and self._plan.mode != RUN:
            return states.not_loaded("the disk was full, so that it may have begun")
        programs = {os.path.basename(program) for program in entropy.programs(closing.path / rundir.ENTROPY)}
        if unsupported := sorted(name for name in programs if TOO_OLD.fullmatch(name)):
            reason = f"{unsupported[0]} is older than Python 3.7"
            closing.warn(f"{reason}: no metrics, weights and seeds are recorded, only entropy", "agent-not-loaded")
            return states.not_loaded(reason)
        return states.not_loaded("no Python process of the run began it")


PART = AgentPart
