"""The command ``reprokit``: finds the subcommand, and prints what went wrong, in one line."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from reprokit.cli.groups import CommandGroup
from reprokit.core.errors import (
    EXIT_IDENTICAL,
    EXIT_OWN_FAILURE,
    EXIT_TROUBLE,
    ReprokitError,
    SystemRefused,
    UsageError,
)
from reprokit.core.printable import printable
from reprokit.core.version import VERSION

GROUPS = {  # the commands, each a module of its name, with what `reprokit` alone says of it
    "Run": {
        "record": "Run a command, and record its entropy and its results.",
        "replay": "Run a recorded command again with the entropy it had.",
        "continue": "Go on with a recording that was killed.",
        "run": "Run a command, record nothing, and catch NaNs.",
        "profile": "Run a command, and report what makes its runs differ.",
        "reproduce": "Run a command until two runs of it are identical.",
    },
    "Compare": {
        "verify": "Compare two runs, bit for bit.",
        "locate": "Find the first operator by which two runs part.",
        "diff": "Compare two files or directories, tensor by tensor.",
        "gate": "Fail a pipeline unless trainings are identical.",
        "resume": "Say whether a resumed training is the whole one.",
        "study": "Run setups many times, and say what varies.",
    },
    "Explain": {
        "show": "Show what a run is and what is in it.",
        "ledger": "Say which samples each step was made of.",
        "ask": "Save tensors of a recorded run, by a replay.",
        "debug": "Stop a replay in a debugger, at any step.",
        "snapshot": "Re-execute a captured step, and explain it.",
        "rules": "Judge a training by its saved tensors.",
        "knowledge": "Search what is known of operations that vary.",
    },
    "Share": {
        "report": "Report what was trained, and on what evidence.",
        "export": "Write results for MLflow or DVC.",
        "attest": "Verify signed statements.",
        "keygen": "Make a pair of keys to sign with.",
        "bundle": "Pack a run into one file.",
        "unpack": "Make a run of such a file.",
        "push": "Write a run to an object store.",
        "pull": "Make a run of what is there.",
    },
    "Maintain": {
        "ls": "List runs.",
        "rm": "Remove runs.",
        "gc": "Remove old runs.",
        "check": "Check every file of a run.",
        "data": "Check every record of a data set.",
        "doctor": "Say what works on this machine.",
        "help": "Explain an error or a command.",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
# Those whose own failures must not look like the training's exit status.
LAUNCHING = ("record", "replay", "continue", "run", "profile", "reproduce")
EXIT_INTERRUPTED = 130
LOCATING = "locate"  # replays runs, and has trouble where that fails
LONGEST_ERROR = 4000


class PipeBroken(Exception):
    """Stands for a BrokenPipeError on its way through click, which would exit with 1: for verify a difference."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _past_click() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeBroken(error) from error


class Commands(CommandGroup):
    """The subcommands: modules that are imported when their names are used."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups, without importing any."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=12)

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Parse the command line, which may print the help or the version."""
        with _past_click():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> object:
        with _past_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"reprokit.cli.{cmd_name}").command
        command.name = cmd_name
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="reprokit", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure of reprokit's.")
def reprokit(debug: bool) -> None:
    """Record, replay and verify unmodified deep-learning trainings, bit for bit."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, subcommand = _before_subcommand(words)
    _open_closed_streams()
    try:
        status = reprokit.main(words, prog_name="reprokit", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        error = error.error if isinstance(error, PipeBroken) else error
        if isinstance(error, BrokenPipeError):
            _end_if_unread()
        if "--debug" in options:
            raise
        status = _report(error, subcommand)
    sys.exit(status or EXIT_IDENTICAL)


def _open_closed_streams() -> None:
    """Open stdout and stderr if the caller closed them, for which Python has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _before_subcommand(words: list[str]) -> tuple[list[str], str]:
    """Return reprokit's own options, and the subcommand's name."""
    for position, word in enumerate(words):
        if not word.startswith("-"):
            return words[:position], word
    return words, ""


def _report(error: Exception, subcommand: str) -> int:
    """Print one line; returns the exit code."""
    own = as_own_error(error, f"reprokit {subcommand}" if subcommand in COMMANDS else "reprokit")
    if own is None:
        _print_error("reprokit: interrupted")
        return EXIT_INTERRUPTED
    _print_error(f"reprokit: {own.slug}: {printable(str(own), LONGEST_ERROR)} (reprokit help {own.slug})")
    if subcommand == LOCATING:
        return EXIT_TROUBLE
    return EXIT_OWN_FAILURE if subcommand in LAUNCHING and own.exit_code < EXIT_OWN_FAILURE else own.exit_code


def as_own_error(error: Exception, command: str = "reprokit") -> ReprokitError | None:
    """Return an error of whatever kind as one of reprokit's, by default of this command; None for an interruption."""
    if isinstance(error, ReprokitError):
        return error
    if isinstance(error, click.Abort):
        return None
    if isinstance(error, click.ClickException):
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else command
        message = error.format_message()
        return UsageError(f"{message}{'' if message.endswith(('.', '?')) else '.'} See '{where} --help'.")
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return SystemRefused(f"the system refused: {error.strerror}{where}")
    if isinstance(error, MemoryError):
        return SystemRefused("not enough memory; raise the limit (ulimit -v)")
    text = f"{type(error).__name__}: {error}; this is a mistake in reprokit, 'reprokit --debug ...' shows where"
    return ReprokitError(text)


def _print_error(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # nobody is there to read it


def _end_if_unread() -> None:
    """End as a program ends whose output nobody reads any more: by SIGPIPE, which Python ignores."""
    from reprokit.cli.output import is_unread
    from reprokit.run.process import die_by

    if is_unread():
        die_by(signal.SIGPIPE)
