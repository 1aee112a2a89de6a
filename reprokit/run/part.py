"""What a part of a run is: what it does before the command starts, beside it, and after its end.

Each part is a file of `parts/`, and a row of the registry there. Run and end of a run walk the parts in the order of
that table, and know none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reprokit.core.errors import ReprokitError, reason
from reprokit.core.messages import warn
from reprokit.model.plan import Plan
from reprokit.model.run import RunFile
from reprokit.model.run_warning import RunWarning
from reprokit.run.command import Command
from reprokit.run.environment import PreloadPaths
from reprokit.run.process import Child, ExitStatus
from reprokit.run.rundirectory import NewRun

if TYPE_CHECKING:
    from reprokit.run.agent_lines import AgentFacts
    from reprokit.run.supervisor import Supervisor
    from reprokit.run.user_commands import UserCommands

T = TypeVar("T")
CHANGED = "changed"  # code of a warning
Watch = Callable[[Child], None]


class Preparation(msgspec.Struct, frozen=True):
    """A run directory that is being prepared: it is not yet at its final path."""

    plan: Plan
    new_run: NewRun
    paths: PreloadPaths
    run: RunFile
    agent_patches: list[Mapping[str, str]] = []  # those that agents apply


class Launch(msgspec.Struct):
    """A command that is about to start: parts may still change how."""

    plan: Plan
    command: Command  # as the user wants it
    executed: Command  # what is started: the command, or a program that starts it
    variables: dict[str, str]
    path: Path  # the run directory
    run: RunFile
    supervisor: Supervisor | None = None
    is_traced: bool = False
    randomized: bool = False  # with the addresses that it would have without reprokit


class Closing:
    """A run whose command has ended. Each step may fail on its own: the training's exit status is passed on."""

    def __init__(
        self,
        plan: Plan,
        path: Path,
        run: RunFile,
        ended: ExitStatus,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan, self.path, self.run, self.interrupted = plan, path, run, interrupted
        self.ended = ended  # the exit status that counts
        self.goes_on = False  # whether a program of the run outlives the command, and may still request entropy
        self.disk_is_full = False
        self.is_over = False  # whether nobody writes metrics, trail and console any more
        self.user_commands: list[UserCommands] = []  # those that ran beside the training
        self.failure: ReprokitError | None = None  # raised once the run is closed
        self.later: list[Callable[[], object]] = []  # steps that need what all parts found

    @cached_property
    def agent(self) -> AgentFacts:
        """What the agents of all processes reported."""
        from reprokit.run import agent_lines

        return agent_lines.read(self.path)

    @property
    def snapshot_fallback(self) -> Path | None:
        """The directory of snapshots for which the run's disk had no room."""
        return None if self.plan.capture is None else self.plan.capture.fallback_of(self.path)

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return what a step returns; warn and return None where it fails."""
        try:
            return step()
        except ReprokitError as error:
            self.warn(reason(error), error.slug)
        except Exception as error:  # no failure of ours may affect the training's result
            name = "" if isinstance(error, (OSError, MemoryError)) else f"{type(error).__name__}: "
            self.warn(name + (str(error) if isinstance(error, OSError) else reason(error)), "step-failed")
        return None

    def warn(self, text: str, code: str) -> None:
        """Print a warning, and keep it in run.json."""
        self.run.warnings.append(RunWarning(text, code))
        self.show(text, code)

    def show(self, text: str, code: str) -> None:
        """Print a warning that the run directory holds elsewhere."""
        # Of a step that is executed again the file of its result reports it.
        if self.plan.capture is None or self.plan.capture.redo is None:
            warn(text, code)

    def say_changed(self, change: str) -> None:
        """Print what is another thing than in the recording, unless it was said before the start."""
        if change not in self.run.changed:
            self.run.changed.append(change)
            warn(f"changed: {change}", CHANGED)

    def replace_fidelity(self, **counts: int) -> None:
        """Add counts to the fidelity of a replay."""
        if self.run.fidelity is not None:
            self.run.fidelity = msgspec.structs.replace(self.run.fidelity, **counts)


class RunPart:
    """A part of a run; each method is called once, for all parts in the order of the registry."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def variables(self, _command: Command, variables: dict[str, str]) -> dict[str, str]:
        """Return the environment variables that the command shall have."""
        return variables

    def prepare(self, preparation: Preparation) -> None:
        """Write what shim, agent or this part need into the new run directory; raises if the run cannot be had."""

    def arm(self, launch: Launch) -> None:
        """Make ready what runs beside the command, at the last moment before it starts."""

    def started(self, launch: Launch) -> None:
        """Begin what needs the started command."""

    def watches(self) -> Iterable[Watch]:
        """Return what is called again and again while the command runs."""
        return ()

    def stop(self, ended: ExitStatus) -> ExitStatus:
        """End what this part keeps running of the training; return the exit status that counts."""
        return ended

    def ended(self, closing: Closing) -> None:
        """Take down what is known at the end of the command alone, such as which programs still run."""

    def finish(self, closing: Closing) -> None:
        """Collect results into the run directory and run.json; what fails becomes a warning."""

    def leave(self, closing: Closing) -> None:
        """Say what the user must know at the very end."""
