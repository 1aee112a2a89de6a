"""Executes a command of reprokit's in a process of its own, and returns its result as what it is."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from reprokit.cli.options import DASHES
from reprokit.core import errors
from reprokit.core.errors import LaunchError, ReprokitError, UsageError

Result = TypeVar("Result", bound=msgspec.Struct)
Command = str | Sequence[str | os.PathLike[str]]
OptionValue = str | int | float | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None

PROGRAM = Path(__file__).with_name("command_process.py")
STDERR = 2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)  # what an interrupted caller sends, one at each interruption


class NewRunPlace(msgspec.Struct):
    """What record and replay hand over: where the run is."""

    path: str


class CommandFailure(msgspec.Struct):
    """An error of the command's process."""

    error: str  # name of its class in reprokit.core.errors
    text: str


class CommandReport(msgspec.Struct):
    """What the command's process hands over."""

    failure: CommandFailure | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


def started(
    name: str,
    arguments: Sequence[str | os.PathLike[str]],
    options: Mapping[str, OptionValue],
    command: Sequence[str] | None,
    kind: type[Result],
    *,
    silent: bool = False,
) -> Result:
    """Execute a command of this name, and return its result; raise what it raises.

    Args:
        name: The command of reprokit.
        arguments: Its arguments.
        options: Its options, with underscores.
        command: The words behind --; None for a command that takes none.
        kind: The class of the result.
        silent: Leave out what the process and its trainings print.
    """
    words = [*option_words(name, options), *map(_word, arguments)]
    return _executed(name, words if command is None else [*words, DASHES, *command], kind, silent=silent)


def recorded(words: Sequence[str], command: Sequence[str]) -> NewRunPlace:
    """Record a command with options that are words of the command line."""
    return _executed("record", [*words, "--quiet", DASHES, *command], NewRunPlace, silent=False)


def words_of(command: Command) -> list[str]:
    """Return a command as words; UsageError for an empty one, or a text that cannot be parted."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [os.fsdecode(word) for word in command]
    except (ValueError, TypeError) as error:
        raise UsageError(f"the command {command!r} is no sequence of words: {error}") from None
    if not words:
        raise UsageError("the command is empty; give its words, as in ['python', 'train.py']")
    return words


def _executed(name: str, words: Sequence[str], kind: type[Result], *, silent: bool) -> Result:
    if any("\0" in word for word in words):
        raise UsageError(f"{name}: a word has a zero byte, which no program can be given")
    with tempfile.TemporaryFile() as file:
        target = subprocess.DEVNULL if silent else STDERR
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(file.fileno()), name, *words],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            pass_fds=[file.fileno()],
        )
        status = _awaited(process)
        file.seek(0)
        return _result(file.read(), kind, f"reprokit {name}", status)


def option_words(name: str, options: Mapping[str, OptionValue]) -> list[str]:
    """Return options as words of the command line; UsageError for those that the command does not have."""
    declared = importlib.import_module(f"reprokit.cli.{name}").command
    known = {word: option for option in declared.params if isinstance(option, click.Option) for word in option.opts}
    words: list[str] = []
    for key, value in options.items():
        dashed = key.strip("_").replace("_", "-")
        option, negation = f"--{dashed}", f"--no-{dashed}"
        if value is False and negation in known:
            words.append(negation)
        elif option in known:
            words += _value_words(option, known[option], value)
        elif value is not True or negation not in known:  # where it is, True is the default
            raise UsageError(f"{name}: there is no option {key!r}{_similar(key, known)}")
    return words


def _similar(key: str, known: Mapping[str, click.Option]) -> str:
    import difflib

    names = [word.removeprefix("--").replace("-", "_") for word in known if word.startswith("--")]
    near = difflib.get_close_matches(key, names, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _value_words(option: str, declared: click.Option, value: OptionValue) -> list[str]:
    """Return an option with its value, once for each of several."""
    if value is None or value is False:
        return []
    if declared.is_flag and value is not True:
        raise UsageError(f"{option}: {value!r} does not fit; give True")
    if value is True:
        if not (declared.is_flag or isinstance(declared.flag_value, str)):
            raise UsageError(f"{option}: True does not fit; give a value")
        return [option]
    if isinstance(value, str | int | float | os.PathLike):
        return [f"{option}={_text(value)}"]
    if declared.multiple:
        return [f"{option}={_text(each)}" for each in value]
    return [f"{option}={','.join(map(_text, value))}"]  # as in --vary


def _text(value: str | float | os.PathLike[str]) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def name_text(name: str | os.PathLike[str]) -> str:
    """Return a name or a path as text; UsageError for what is neither."""
    if isinstance(name, str | os.PathLike):
        return os.fspath(name)
    raise UsageError(f"{name!r} is neither a name nor a path; give a text, or several arguments in place of a list")


def _word(argument: str | os.PathLike[str]) -> str:
    """Return an argument, which must not be taken for an option."""
    text = name_text(argument)
    return f"./{text}" if text.startswith("-") else text


def _awaited(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process, to which an interruption is handed on: then it ends its training and closes the run."""
    interruption: BaseException | None = None
    for number in ENDING:
        try:
            process.wait()
            break
        except BaseException as error:
            interruption = error
            process.send_signal(number)
    status = process.wait()
    if interruption is not None:
        raise interruption
    return status


def _result(data: bytes, kind: type[Result], command: str, status: int) -> Result:
    if not data:
        raise LaunchError(f"{command} ended without a result (wait status {status}); run it again")
    report = msgspec.json.decode(data, type=CommandReport)
    if report.failure is not None:
        error_class: Any = getattr(errors, report.failure.error, ReprokitError)
        raise error_class(report.failure.text)
    return msgspec.json.decode(report.result, type=kind)
