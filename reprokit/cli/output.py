"""What commands print and write: results as JSON or for the eyes, files whole or not at all, the training's end."""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from reprokit.cli import options
from reprokit.core import redaction
from reprokit.core.errors import CannotWriteReport, refused_as
from reprokit.run.rundirectory import shown
from reprokit.run_files import home as run_home
from reprokit.run_files import rundir

if TYPE_CHECKING:
    from reprokit.model.plan import Plan
    from reprokit.run.process import ExitStatus

Result = TypeVar("Result")
RESULT = (
    "reprokit.result"  # in a context of the Python interface: a function that takes the result, which is not printed
)


def present(
    result: Result, *, as_json: bool, document: Callable[[Result], Any], text: Callable[[Result], None]
) -> None:
    """Print a result as one JSON document, or for the eyes; the Python interface takes it as it is."""
    if _is_taken(result):
        return
    if as_json:
        print_json(document(result))
    else:
        text(result)


def _is_taken(result: object) -> bool:
    """Hand a result to the Python interface, if that asks for it."""
    context = click.get_current_context(silent=True)
    take = context and context.meta.get(RESULT)
    if take:
        take(result)
    return bool(take)


def print_json(document: Any) -> None:
    """Print a JSON document, without passwords and tokens unless the user asks for them."""
    click.echo(json.dumps(redaction.shown_document(document), indent=2))


@contextmanager
def stdout_kept(for_a_document: bool) -> Iterator[None]:
    """Keep stdout for one document: what is started meanwhile prints to stderr."""
    if not for_a_document:
        yield
        return
    sys.stdout.flush()
    own = os.dup(1)  # not inherited by what is started
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def write_whole(path: Path, text: str) -> None:
    """Replace a file whole or not at all."""
    with refused_as(CannotWriteReport, path, "choose another place with -o"):
        rundir.write_whole(path, text.encode("utf-8", "backslashreplace"), mode=0o666)


def says_next() -> bool:
    """Return whether a next command is printed: not with --quiet, nor beside a JSON document."""
    context = click.get_current_context(silent=True)
    return context is not None and not (context.params.get("as_json") or context.meta.get(options.QUIET))


def say_next(*words: str) -> None:
    """Print the usual next command, unless --quiet or a JSON document was asked for."""
    from reprokit.core.messages import say

    if says_next():
        say(f"next: {shlex.join(words)}")


def launch(
    plan: Plan,
    *following: str,
    ended: Callable[[Path], None] | None = None,
    ended_well: Callable[[Path], None] | None = None,
) -> NoReturn:
    """Execute a plan, say what to do with a run that ended well or was interrupted, and end as the training ended."""
    from reprokit.run.run import execute

    if plan.output is not None and plan.output.parent.name == rundir.HOSTS:
        from reprokit.run.remote_hosts import with_other_hosts

        plan = with_other_hosts(plan, sys.argv[1:])
    done = execute(_with_progress(plan))
    _is_taken(done)
    if ended is not None:
        ended(done.path)
    if ended_well is not None and done.ended.exit_code == 0:
        ended_well(done.path)
    if following and done.interrupted:
        say_next("reprokit", "show", *named(done.path))  # a replay would not end where the run did
    elif following and done.ended.exit_code == 0:
        say_next(*following, *named(done.path))
    end_as(done.ended)


def _with_progress(plan: Plan) -> Plan:
    """Return the plan; that of a replay says how far it is, if somebody watches it and did not ask for quiet."""
    from reprokit.core.messages import is_watched

    if plan.replay_of is None or not says_next() or not is_watched():
        return plan
    import msgspec

    return msgspec.structs.replace(plan, tells_progress=True)


def named(path: Path) -> list[str]:
    """Return the shortest name of a run for the next command."""
    home = run_home.home_of(Path())
    if path.parent == home and run_home.last(home) == path:
        return [run_home.LAST]
    return [shown(path)]


def end_as(ended: ExitStatus) -> NoReturn:
    """The training's exit code, or its death by the same signal.

    The run is closed and every line of it written: taking the interpreter apart would only cost another 13 ms.
    """
    from reprokit.run.process import die_by

    if ended.signal_number is not None:
        die_by(ended.signal_number)
    assert ended.exit_code is not None
    with suppress(OSError, ValueError, AttributeError):  # a stderr that is closed or full
        sys.stderr.flush()
    os._exit(ended.exit_code)


def is_unread() -> bool:
    """Return whether stdout is a pipe whose reader has gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


@contextmanager
def interruptible(words: str = "") -> Iterator[None]:
    """End the command as a signal asks that interrupts what is done inside, and say what came of it."""
    from reprokit.core.messages import say
    from reprokit.run.interruption import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        if words:
            say(f"interrupted; {words}")
        sys.exit(128 + interrupted.number)


@contextmanager
def ending_with(status: int) -> Iterator[None]:
    """End the command with the status of its verdict, which is printed inside, also if nobody reads that."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to complain of at exit
    click.get_current_context().exit(status)
