"""Sees which environment variables the user's own code asks os.environ for, and writes each down by name and digest.

Values can be secret, and a plain digest of a short one can be guessed: the digests are keyed by a key of the run. The
interpreter's and installed packages' own reads are left alone, but for packages that read what the user's code names.
"""

from __future__ import annotations

import os
import sys

from .core import user_frames
from .core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from .agent import Agent

KEY = "/variables.key"  # of reprokit/rundir.py
MAX_LINES = 1000  # of one process; what it reads after that is not looked at
_PRESENCE = object()  # was asked for, not the value
_NAMED_BY_LAUNCHER = ("LD_PRELOAD", "PYTHONPATH", "REPROKIT_ID", "REPROKIT_PAD", "REPROKIT_RANK", "REPROKIT_RUN")
# Packages that read the variables that a script gives them the names of.
_ON_BEHALF = ("click", "configargparse", "decouple", "environ", "environs", "jsonargparse", "omegaconf")


class VariableReads:
    """The reads of this process that are written down, each name and value once."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._key: bytes | None = None
        self._key_id = ""
        self._noted: set[tuple[Any, Any]] = set()
        self._readers: dict[str, bool] = {}  # by file, whether its reads are the user's

    def watch(self) -> None:
        """Replace the method that all reads come through by one that looks at its caller."""
        kind: Any = os._Environ
        original, look = kind.__getitem__, self._look_at_caller(kind)

        def read(environ: Any, name: Any) -> Any:
            try:
                value = original(environ, name)
            except KeyError:
                look(name, None)
                raise
            look(name, value)
            return value

        read.__name__, read.__qualname__ = original.__name__, original.__qualname__
        kind.__getitem__ = read

    def _look_at_caller(self, kind: Any) -> Callable[[Any, Any], None]:
        """Return what notes a read if it is the user's; each read of a process pays for it, so it is one function."""
        of_presence: CodeType = kind.__contains__.__code__
        methods = (kind.get, kind.pop, kind.setdefault, os.getenv, os.getenvb)
        between = frozenset([of_presence, *(method.__code__ for method in methods)])
        readers, noted, frame_of = self._readers, self._noted, sys._getframe

        def look(name: Any, value: Any) -> None:
            try:
                frame: Any = frame_of(2)
                first = code = frame.f_code
                while code in between:
                    frame = frame.f_back
                    code = frame.f_code
                file = code.co_filename
                if readers[file] if file in readers else self._is_reader(file):
                    asked = value if first is not of_presence or value is None else _PRESENCE
                    if (name, asked) not in noted:
                        self._agent.attempt(self._note, name, asked, frame, code is first)
            except Exception as error:  # no frame of Python's called
                pass_on(error)

        # torch.compile then calls it as it compiles, instead of looking into it.
        look._dynamo_marked_constant = True  # type: ignore[attr-defined]
        return look

    def _is_reader(self, file: str) -> bool:
        is_reader = self._readers[file] = user_frames.is_users(file) or (
            user_frames.installed_package(file).lower() in _ON_BEHALF
        )
        return is_reader

    def _note(self, name: Any, asked: Any, frame: FrameType, is_direct: bool) -> None:
        """Write the line of a read, unless it is none of a single variable or too many are there."""
        if len(self._noted) >= MAX_LINES or not isinstance(name, (str, bytes)):
            return
        if is_direct and not _is_subscript(frame):
            return
        text = os.fsdecode(name)
        place = user_frames.users_frame(frame)
        if text in _NAMED_BY_LAUNCHER or place is None:
            return
        self._noted.add((name, asked))
        where = f"{os.path.basename(place.f_code.co_filename)}:{place.f_lineno}"
        facts = {"name": text, "where": where, "set": asked is not None}
        if isinstance(asked, (str, bytes)):
            facts.update(self._digest(text, asked))
        self._agent.journal.write("variable", facts, aside=True)

    def _digest(self, name: str, value: str | bytes) -> dict[str, object]:
        """Return the keyed digest of a variable and which key that is; nothing where the key may not be read."""
        from _blake2 import blake2b  # as hashlib would load OpenSSL

        if self._key is None:
            try:
                with open(self._agent.run + KEY, "rb") as file:
                    self._key = file.read(64)
            except OSError as error:
                self._key = b""
                self._agent.warn(f"values of environment variables are not compared: {KEY[1:]}: {error.strerror}")
            self._key_id = blake2b(key=self._key, digest_size=8).hexdigest()
        if not self._key:
            return {"undigested": True}
        data = os.fsencode(name) + b"\0" + os.fsencode(value)
        return {"digest": blake2b(data, key=self._key, digest_size=16).hexdigest(), "key": self._key_id}


def _is_subscript(frame: FrameType) -> bool:
    """Return whether a frame is at environ[name], and not at a copy of all variables like dict(environ)."""
    from opcode import opmap

    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and not code[at]:  # what specialized instructions keep behind them
        at -= 2
    return code[at] == opmap.get("BINARY_SUBSCR", opmap.get("BINARY_OP"))


def watch(agent: Agent) -> None:
    """Begin to see what this process reads by os.environ and os.environb."""
    VariableReads(agent).watch()
