"""Applies patches: variables before the start, the rest by agents, whose states are taken down at the end."""

from __future__ import annotations

from reprokit.core.messages import warn
from reprokit.run import run_patches
from reprokit.run.command import Command
from reprokit.run.part import Closing, Launch, Preparation, RunPart
from reprokit.run.run_patches import PreparedPatches


class PatchesPart(RunPart):
    """The patches of a run."""

    _prepared: PreparedPatches

    def variables(self, command: Command, variables: dict[str, str]) -> dict[str, str]:
        self._prepared = run_patches.prepare(self._plan.patches, command, variables, self._plan.working_directory)
        return self._prepared.variables

    def prepare(self, preparation: Preparation) -> None:
        preparation.run.patches = self._prepared.states
        preparation.agent_patches.extend(self._prepared.for_agent)

    def arm(self, launch: Launch) -> None:
        for text in run_patches.words_before(launch.run.patches):
            warn(text, "patch")

    def finish(self, closing: Closing) -> None:
        before, closing.run.patches = closing.run.patches, run_patches.at_end(closing.run.patches, closing.agent)
        for text in run_patches.words_after(before, closing.run.patches):
            closing.warn(text, "patch")


PART = PatchesPart
