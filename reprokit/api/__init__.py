"""The Python interface: `import reprokit` has these names, and imports this room with the first use of one.

What starts trainings executes the command of the same name in a process of its own (`commands.py`), so that threads,
signals and frameworks of the caller stay out of it. Nothing is printed to stdout: what trainings print goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from reprokit.api.commands import Command, OptionValue, name_text, started, words_of
from reprokit.api.results import Run, RunLike, RunVerdict, new_run
from reprokit.core.errors import ReprokitError, UsageError
from reprokit.gate.results import GateVerdict
from reprokit.model.added_tensors import TensorsAnswer
from reprokit.model.divergence import LocatedDivergence
from reprokit.model.resumption import ResumeFinding

__all__ = [
    "ReprokitError",
    "Run",
    "RunVerdict",
    "ask",
    "gate",
    "locate",
    "record",
    "replay",
    "resume",
    "runs",
    "verify",
]


def record(
    command: Command | Callable[[], object],
    output: str | os.PathLike[str] | None = None,
    *,
    silent: bool = False,
    **options: OptionValue,
) -> Run:
    """Run a command unchanged, record the entropy it is given, and return its run.

    Args:
        command: A sequence of words, a text that is parted into words as a shell would (no shell runs), or a function
            without parameters that a module or a script defines at its top level. A function is called in a process of
            its own, which imports that module; what it returns is dropped.
        output: The run directory to create; by default one of its own below `.reprokit`.
        silent: Print nothing, in place of printing to stderr what the training prints and what reprokit says.
        **options: The options of `reprokit record`, with underscores: `keyed=True`, `seed="1"`, `console=False` (for
            `--no-console`), `tensors=["weights", "losses"]`.

    Returns:
        The run. A command that failed is recorded too: look at `Run.exit_code`.

    Raises:
        ReprokitError: The command could not be started or recorded; `UsageError` for options that make no sense.
    """
    words = _function_words(command) if callable(command) else words_of(command)
    return new_run("record", [], output, options, words, silent=silent)


def replay(
    run: RunLike = "last",
    output: str | os.PathLike[str] | None = None,
    *,
    command: Command | None = None,
    silent: bool = False,
    **options: OptionValue,
) -> Run:
    """Run a recorded command again with the entropy it was given, and return the replay.

    Args:
        run: The recording: a `Run`, a path or a name; "last" is the newest recording.
        output: The run directory to create; by default one of its own below `.reprokit`.
        command: Another command in place of the recorded one.
        silent: Print nothing.
        **options: The options of `reprokit replay`, with underscores.
    """
    return new_run("replay", [run], output, options, () if command is None else words_of(command), silent=silent)


def runs(directory: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of a directory, the newest first; by default those of the nearest `.reprokit`."""
    from reprokit.run_files import home

    place = home.home_of(Path()) if directory is None else Path(directory)
    return [Run(found.path) for found in home.newest_first(place)] if place.is_dir() else []


def verify(
    left: RunLike = "",
    right: RunLike = "",
    *,
    rtol: str | float | Sequence[str] = (),
    atol: str | float | Sequence[str] = (),
    ulp: str | int | Sequence[str] = (),
    ignore: Sequence[str] = (),
    ignore_console: Sequence[str] = (),
    no_ignores: bool = False,
    strict_console: bool = False,
) -> RunVerdict:
    """Compare two runs bit for bit: metrics, weights and outputs.

    Args:
        left: A `Run`, a path or a name. Alone it is compared with its recording, or with its newest replay; without
            both, the newest replay is compared with its recording.
        right: The run to compare it with.
        rtol: Relative tolerance, of everything (`1e-6`) or of quantities (`["loss=1e-6"]`).
        atol: Absolute tolerance, likewise.
        ulp: Number of representable numbers between two values that is accepted, likewise.
        ignore: Files, or values in them, that may differ, as `--ignore`.
        ignore_console: Regular expressions of what is left out of printed lines, as `--ignore-console`.
        no_ignores: Ignore nothing that only the configuration declares.
        strict_console: Compare printed lines as they are.

    Returns:
        The verdict, which is true exactly where `reprokit verify` exits with 0.

    Raises:
        ReprokitError: The runs cannot be compared; `NothingComparable` where neither recorded any results.
    """
    from reprokit.cli import verify as command
    from reprokit.cli.ignores import IgnoreRequest
    from reprokit.cli.tolerances import asked
    from reprokit.core.tolerance import QUANTITIES

    if right and not left:
        raise UsageError("verify: give the left run too")
    tolerances = asked(QUANTITIES, rtol=_texts(rtol), atol=_texts(atol), ulp=_texts(ulp))
    ignores = IgnoreRequest(_texts(ignore), _texts(ignore_console), no_ignores).ignores()
    first, second = (_resolved(run) if run else None for run in (left, right))
    return RunVerdict(command.compared(first, second, tolerances, ignores, strict_console=strict_console))


def gate(
    command: Command | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    silent: bool = False,
    **options: OptionValue,
) -> GateVerdict:
    """Record, replay and compare a command, or the trainings of reprokit.toml; the verdict is true if all passed.

    Args:
        command: The training; by default those that reprokit.toml lists.
        output: Keep the runs in this directory; by default they are removed if everything passes.
        silent: Print nothing.
        **options: The options of `reprokit gate`, with underscores: `pairs=2`, `clean=True`.
    """
    words = None if command is None else words_of(command)
    return started("gate", [], {**options, "output": output}, words, GateVerdict, silent=silent)


def resume(
    command: Command,
    output: str | os.PathLike[str] | None = None,
    *,
    silent: bool = False,
    **options: OptionValue,
) -> ResumeFinding:
    """Interrupt a training, resume it, and return whether it then is the one that was not: the finding is true if so.

    Args:
        command: The training.
        output: Keep the runs in this directory; by default they are removed if the resumed training is exact.
        silent: Print nothing.
        **options: The options of `reprokit resume`, with underscores: `at=500`, `resume_with="python train.py -r"`.
    """
    return started("resume", [], {**options, "output": output}, words_of(command), ResumeFinding, silent=silent)


def locate(left: RunLike, right: RunLike = "", *, silent: bool = False, **options: OptionValue) -> LocatedDivergence:
    """Replay runs in pairs, and return the first operator by which they part; `differs` says whether any pair parts.

    Args:
        left: A `Run`, a path or a name. Alone it is replayed twice, or with its recording if it is a replay.
        right: The other run.
        silent: Print nothing.
        **options: The options of `reprokit locate`, with underscores: `pairs=10`, `keep="call"`.
    """
    return started("locate", [left, *([right] if right else [])], options, None, LocatedDivergence, silent=silent)


def ask(run: RunLike, *tensors: str, silent: bool = False, **options: OptionValue) -> TensorsAnswer:
    """Save tensors of a recorded run by a replay, as if they had been saved while it trained.

    Args:
        run: The recording: a `Run`, a path or a name. The tensors are added to it; read them with `reprokit.trial`.
        *tensors: Collections such as "weights" and "gradients", or regular expressions.
        silent: Print nothing.
        **options: The options of `reprokit ask`, with underscores: `steps="100-200:10"`, `reduce="l2,mean"`.

    Returns:
        What was added and what was refused. It is true exactly where `reprokit ask` exits with 0.
    """
    return started("ask", [run, *tensors], options, None, TensorsAnswer, silent=silent)


def _function_words(function: Callable[[], object]) -> list[str]:
    """Return the command that calls a function in a process of its own."""
    from reprokit.api.functions import place_of

    program = str(Path(__file__).with_name("function_process.py"))
    return [sys.executable, program, *place_of(function)]


def _resolved(run: RunLike) -> Path:
    from reprokit.run_files import home

    return home.resolve(name_text(run))


def _texts(values: str | float | Sequence[str]) -> tuple[str, ...]:
    return (str(values),) if isinstance(values, str | int | float) else tuple(map(str, values))
