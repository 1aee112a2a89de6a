"""Names memory that processes share without a lock: what depends on who comes first there may not repeat."""

from __future__ import annotations

from reprokit.core.messages import say
from reprokit.model.plan import RECORD
from reprokit.model.states import Uncovered
from reprokit.run.part import Closing, RunPart


class SharedMemoryPart(RunPart):
    """The memory that processes of a run share."""

    def finish(self, closing: Closing) -> None:
        for what in sorted(closing.agent.shared):
            text = f"{what}: memory that processes share; what depends on who comes first there may not repeat"
            closing.run.uncovered.append(Uncovered(source="memory", text=text))
            if self._plan.kind == RECORD:
                say(text)


PART = SharedMemoryPart
