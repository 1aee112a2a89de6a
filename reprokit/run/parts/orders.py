"""Counts how many turns of threads and processes a replay took in their recorded order."""

from __future__ import annotations

from reprokit.core.messages import say
from reprokit.run import agent_lines
from reprokit.run.part import Closing, RunPart


class OrdersPart(RunPart):
    """The orders of a replay."""

    def finish(self, closing: Closing) -> None:
        orders, run = closing.agent.orders, closing.run
        if run.fidelity is not None and any(orders.values()):
            exact, moved, unused = (orders[kind] for kind in agent_lines.TURNS)
            closing.replace_fidelity(orders=exact, orders_moved=moved, orders_unused=unused)
            say(f"orders: {run.fidelity.orders_in_words}")


PART = OrdersPart
