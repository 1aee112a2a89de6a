"""What commands print and write: results as JSON or for the eyes, files whole or not at all, the training's end."""

from __future__ import annotations

import json
import os
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


def present(
    result: Result, *, as_json: bool, document: Callable[[Result], Any], text: Callable[[Result], None]
) -> None:
    """Print a result as one JSON document, or for the eyes."""
    if as_json:
        print_json(document(result))
    else:
        text(result)


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


def launch(plan: Plan, *following: str) -> NoReturn:
    """Execute a plan, say what to do with a run that ended well, and end as the training ended."""
    from reprokit.run.run import execute

    if plan.output is not None and plan.output.parent.name == rundir.HOSTS:
        from reprokit.run.remote_hosts import with_other_hosts

        plan = with_other_hosts(plan, sys.argv[1:])
    done = execute(plan)
    if following and done.ended.exit_code == 0:
        say_next(*following, *named(done.path))
    end_as(done.ended)


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
