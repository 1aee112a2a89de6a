"""Records which environment variables the user's own code reads from os.environ, each by name and digest.

Values can be secret, and a plain digest of a short one can be guessed: the digests are keyed by a key of the run. Reads
by the interpreter and by installed packages are ignored, except packages that read what the user's code names.
"""

from __future__ import annotations

import os
import sys

from ..core import user_frames
from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from ..core.agent import Agent

KEY = "/variables.key"  # of reprokit/run_files/rundir.py
MAX_LINES = 1000  # of one process; later reads are ignored
_PRESENCE = object()  # stands for a read of whether the variable is set
_NAMED_BY_LAUNCHER = ("LD_PRELOAD", "PYTHONPATH", "REPROKIT_ID", "REPROKIT_PAD", "REPROKIT_RANK", "REPROKIT_RUN")
# Packages that read variables named by a script.
_ON_BEHALF = ("click", "configargparse", "decouple", "environ", "environs", "jsonargparse", "omegaconf")


class VariableReads:
    """Records the reads of this process, each name and value once."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._key: bytes | None = None
        self._key_id = ""
        self._recorded: set[tuple[Any, Any]] = set()
        self._readers: dict[str, bool] = {}  # by file, whether its reads count as the user's

    def watch(self) -> None:
        """Patch the method that all reads pass through."""
        environ_class: Any = os._Environ
        original, record = environ_class.__getitem__, self._make_recorder(environ_class)

        def read(environ: Any, name: Any) -> Any:
            try:
                value = original(environ, name)
            except KeyError:
                record(name, None)
                raise
            record(name, value)
            return value

        read.__name__, read.__qualname__ = original.__name__, original.__qualname__
        environ_class.__getitem__ = read

    def _make_recorder(self, environ_class: Any) -> Callable[[Any, Any], None]:
        """Return a function that records a read if it is the user's; each read of a process calls it."""
        contains_code: CodeType = environ_class.__contains__.__code__
        methods = (environ_class.get, environ_class.pop, environ_class.setdefault, os.getenv, os.getenvb)
        internal_codes = frozenset([contains_code, *(method.__code__ for method in methods)])
        readers, recorded, frame_of = self._readers, self._recorded, sys._getframe

        def record(name: Any, value: Any) -> None:
            try:
                frame: Any = frame_of(2)
                first = code = frame.f_code
                while code in internal_codes:
                    frame = frame.f_back
                    code = frame.f_code
                file = code.co_filename
                if readers[file] if file in readers else self._is_reader(file):
                    read_value = value if first is not contains_code or value is None else _PRESENCE
                    if (name, read_value) not in recorded:
                        self._agent.attempt(self._note, name, read_value, frame, code is first)
            except Exception as error:  # not called from Python code
                pass_on(error)

        # Makes torch.compile call it while compiling, instead of tracing into it.
        record._dynamo_marked_constant = True  # type: ignore[attr-defined]
        return record

    def _is_reader(self, file: str) -> bool:
        is_reader = self._readers[file] = user_frames.is_users(file) or (
            user_frames.installed_package(file).lower() in _ON_BEHALF
        )
        return is_reader

    def _note(self, name: Any, value: Any, frame: FrameType, is_direct: bool) -> None:
        """Write the line of a read, unless it copies all variables, or MAX_LINES is reached."""
        if len(self._recorded) >= MAX_LINES or not isinstance(name, (str, bytes)):
            return
        if is_direct and not _is_subscript(frame):
            return
        text = os.fsdecode(name)
        users_frame = next(user_frames.users_frames(frame), None)
        if text in _NAMED_BY_LAUNCHER or users_frame is None:
            return
        self._recorded.add((name, value))
        where = f"{os.path.basename(users_frame.f_code.co_filename)}:{users_frame.f_lineno}"
        facts = {"name": text, "where": where, "set": value is not None}
        if isinstance(value, (str, bytes)):
            facts.update(self._digest(text, value))
        self._agent.journal.write("variable", facts, aside=True)

    def _digest(self, name: str, value: str | bytes) -> dict[str, object]:
        """Return the keyed digest of a variable, and the id of the key; no digest if the key cannot be read."""
        from _blake2 import blake2b  # not hashlib, which would load OpenSSL

        if self._key is None:
            try:
                with open(self._agent.run + KEY, "rb") as file:
                    self._key = file.read(64)
            except OSError as error:
                self._key = b""
                self._agent.warn(
                    f"values of environment variables are not compared: {KEY[1:]}: {error.strerror}",
                    "variables-not-compared",
                )
            self._key_id = blake2b(key=self._key, digest_size=8).hexdigest()
        if not self._key:
            return {"undigested": True}
        data = os.fsencode(name) + b"\0" + os.fsencode(value)
        return {"digest": blake2b(data, key=self._key, digest_size=16).hexdigest(), "key": self._key_id}


def _is_subscript(frame: FrameType) -> bool:
    """Return whether a frame executes environ[name], not a copy of all variables like dict(environ)."""
    from opcode import opmap

    code, offset = frame.f_code.co_code, frame.f_lasti
    while offset > 0 and not code[offset]:  # skips the inline cache of specialized instructions
        offset -= 2
    return code[offset] == opmap.get("BINARY_SUBSCR", opmap.get("BINARY_OP"))


def start(agent: Agent) -> None:
    """Begin to record reads of os.environ and os.environb."""
    VariableReads(agent).watch()
