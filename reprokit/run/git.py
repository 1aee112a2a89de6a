"""Asks git about a checkout: each answer is bounded in time, and no monitor or viewer that it names is executed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reprokit.model.environment import GitProblem

LIMIT = 2.0  # seconds for each call of git
BLOCK = 1 << 16
LONGEST = 2000  # characters of an address
_SCHEMES = ("https", "http", "ssh", "git", "file", "git+ssh", "ssh+git")
# Keep git from executing programs that the checkout's configuration names, and from showing other objects than its own.
_SAFELY = ("--no-replace-objects", "--literal-pathspecs", "-c", "core.fsmonitor=false")
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


class GitFailed(Exception):
    """Says why git gave no answer."""

    def __init__(self, problem: GitProblem):
        super().__init__(problem)
        self.problem: GitProblem = problem


@dataclass(frozen=True)
class Git:
    """The git program, in a directory."""

    program: str
    directory: Path

    def output(self, *arguments: str, limit: float = LIMIT) -> bytes:
        """Return what git prints; raises GitFailed."""
        return b"".join(self.blocks(*arguments, limit=limit))

    def blocks(self, *arguments: str, limit: float = LIMIT) -> Generator[bytes, None, None]:
        """Yield what git prints; raises GitFailed at the end if it failed or was too slow."""
        try:
            process = subprocess.Popen(
                [self.program, *_SAFELY, *arguments],
                cwd=self.directory,
                env={**os.environ, **_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
            )
        except (OSError, ValueError):  # also for too long a list of arguments
            raise GitFailed("failed") from None
        assert process.stdout is not None
        with _bounded(process, limit) as is_late:
            yield from _blocks(process.stdout)
        if is_late.is_set() or process.returncode:
            raise GitFailed("no-answer" if is_late.is_set() else "failed")

    def address(self) -> str:
        """Return where the checkout's branch, or `origin`, comes from, without credentials; empty if from nowhere."""
        text = self.output("ls-remote", "--get-url").decode("utf-8", "replace").strip()
        scheme, separator, rest = text.partition("://")
        if separator:
            host, slash, path = rest.partition("/")
            path = re.split("[?#]", path, maxsplit=1)[0]
            return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"[:LONGEST] if scheme in _SCHEMES else ""
        user = text.rpartition("@")[0]
        if "::" in text or ":" in user:  # a program of its own, with whatever arguments; a password
            return ""
        return text[:LONGEST] if {"/", ":"} & set(text) else ""  # else it is the name of a remote that is not there


@contextmanager
def _bounded(process: subprocess.Popen[bytes], limit: float) -> Iterator[threading.Event]:
    """End a process, with those that it started, after these seconds or when the reader stops."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill(process)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    except GeneratorExit:
        _kill(process)
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
        process.wait()
        timer.cancel()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


@dataclass(frozen=True)
class Checkout:
    """A git checkout, at the commit that its HEAD is."""

    git: Git
    root: str  # its top directory, without symbolic links
    commit: str


def checkout_of(directory: Path, place: Path | None) -> Checkout:
    """Return the checkout that a directory is in, with its .git at a place if that is known. Raises GitFailed."""
    from shutil import which  # imported while the training runs: slow to load

    program = which("git")
    if program is None:
        raise GitFailed("absent")
    git = Git(program, directory)
    try:
        root, commit = git.output("rev-parse", "--show-toplevel", "HEAD").rstrip(b"\n").rsplit(b"\n", 1)
    except ValueError:
        raise GitFailed("failed") from None
    except GitFailed as failure:
        is_refused = failure.problem == "failed" and _is_others(place)
        raise GitFailed("other-owner" if is_refused else failure.problem) from None
    return Checkout(git, os.path.realpath(os.fsdecode(root)), commit.decode("ascii", "replace"))


def _is_others(place: Path | None) -> bool:
    """Return whether another user owns the top directory of a checkout."""
    with suppress(OSError):
        return place is not None and os.geteuid() not in {os.stat(path).st_uid for path in (place, place / ".git")}
    return False
