"""Gives a replay the recorded seeds and orders, and says how many seeds were given again."""

from __future__ import annotations

from pathlib import Path

from reprokit.core.messages import say
from reprokit.model.run_warning import RunWarning
from reprokit.run import seeds
from reprokit.run.part import Closing, Preparation, RunPart


class SeedsPart(RunPart):
    """The seeds of a replay."""

    def prepare(self, preparation: Preparation) -> None:
        recording = self._plan.replay_of
        if recording is not None:
            problem = seeds.hand_on(Path(recording.path), preparation.new_run.path, force=self._plan.force)
            preparation.run.warnings += [RunWarning(problem, "seeds-left-out")] if problem else []

    def finish(self, closing: Closing) -> None:
        facts = closing.agent
        if facts.seeds:
            kept = facts.seeds - facts.seeds_replaced
            say(f"seeds: {kept} as the training asked, {facts.seeds_replaced} given again as recorded")


PART = SeedsPart
