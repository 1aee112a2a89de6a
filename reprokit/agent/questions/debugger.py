"""Stops a replay at a step in Python's debugger, in the script's own frame; in IPython's where that is installed."""

from __future__ import annotations

import bdb
import os
import sys

from ..core.live_objects import LiveObjects
from ..core.signal_errors import pass_on
from ..core.stderr_lines import say
from ..core.step_window import StepWindow
from ..core.user_frames import users_frames
from ..events.steps import OptimizerMade, UpdateDone
from ..operators.files import append
from ..state.unheld_variables import UnheldVariables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent

MAX_NAMED = 20
STOPPED = "stopped"  # a file of the answers: a byte once the debugger was begun


def listener(agent: Agent, question: Mapping[str, Any], _framework: str, _events: Events) -> StepDebugger:
    """Return the listener that stops this process."""
    return StepDebugger(agent, question["steps"]["first"], question["debug"])


class StepDebugger:
    """Begins the debugger when a step begins, or later where its condition holds or its line is reached."""

    def __init__(self, agent: Agent, step: int, asked: Mapping[str, Any]) -> None:
        self._agent, self._step = agent, step
        self._place, self._condition = asked["at"], asked["when"]
        self._window, self._records = StepWindow({}), LiveObjects()
        self._has_begun = self._has_warned = False

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {OptimizerMade: self._optimizer_made, UpdateDone: self._updated}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """Say why the debugger did not begin."""
        say(f"the debugger did not begin: {type(error).__name__}: {error}")

    def _optimizer_made(self, event: OptimizerMade) -> None:
        if event.optimizer is not None:
            self._records.add(event.optimizer)

    def _updated(self, event: UpdateDone) -> None:
        if not self._window.updated(event.optimizer, self._records):
            return
        frame = next(users_frames(sys._getframe()), None)
        if self._has_begun or self._window.step < self._step or frame is None:
            return
        if self._place or self._holds(frame):
            self._has_begun = True
            self._say_what_may_be_wrong()
            self._begin(frame)

    def _say_what_may_be_wrong(self) -> None:
        """Name the variables that no keyframe holds, where one was put in."""
        unheld = self._agent.shared.get(UnheldVariables)
        names = [] if unheld is None else unheld.names
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        if names:
            say(f"these, which the keyframe lacks, may not be as in the run: {', '.join(names[:MAX_NAMED])}{more}")

    def _holds(self, frame: FrameType) -> bool:
        """Return whether the condition holds in the script's frame; one that cannot be computed does not."""
        try:
            return not self._condition or bool(eval(self._condition, frame.f_globals, dict(frame.f_locals)))
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                say(f"--when at step {self._window.step}: {type(error).__name__}: {error}")
            pass_on(error)
            return False

    def _begin(self, frame: FrameType) -> None:
        debugger = _debugger(f"{self._agent.run}/answers/{STOPPED}")
        debugger.reset()
        outer: FrameType | None = frame
        while outer is not None:
            outer.f_trace = debugger.trace_dispatch
            debugger.botframe = outer
            outer = outer.f_back
        if self._place:
            file, _, line = self._place.rpartition(":")
            own = frame.f_code.co_filename
            path = own if os.path.basename(own) == file else os.path.abspath(file)
            problem = debugger.set_break(path, int(line), cond=self._condition or None)
            if problem:
                say(f"--at {self._place}: {problem}")
                return
            say(f"step {self._window.step} has begun; the debugger waits for {self._place}")
            debugger.set_continue()
        else:
            say(f"step {self._window.step} begins")
            debugger.set_next(frame)
        sys.settrace(debugger.trace_dispatch)


def _debugger(answer: str) -> Any:
    """Return a debugger that notes that it began, and whose quitting ends the process without a traceback."""
    base = _base()

    class QuietDebugger(base):  # type: ignore[misc, valid-type]
        def user_line(self, frame: FrameType) -> None:
            append(answer, b".")
            super().user_line(frame)

        def trace_dispatch(self, frame: FrameType, event: str, argument: Any) -> Any:
            try:
                return super().trace_dispatch(frame, event, argument)
            except bdb.BdbQuit:
                sys.settrace(None)
                raise SystemExit(0) from None

    return QuietDebugger(nosigint=True)


def _base() -> Any:
    if sys.stdin is not None and sys.stdin.isatty():
        try:
            from IPython.terminal.debugger import TerminalPdb  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            pass
        else:
            return TerminalPdb
    from pdb import Pdb

    return Pdb
