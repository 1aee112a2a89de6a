"""Runs `reprokit` in processes that need not import it: each is forked from one that has done so, once for all tests.

Such a process is one of its own in all that a command can see but three things: its memory begins as the server's, the
command line of `ps` is the server's, and so is the seed of Python's hashes. Where more than that matters, for
what is read before the first line of Python runs, tests start the installed command: `Reprokit.start`, or a variable
of `READ_AT_THE_START`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import reprokit

READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_", "ASAN_", "LSAN_")
# What starts threads, or takes long: modules that import it at once are left to the commands that need them.
NOT_IMPORTED = ("numpy", "torch", "tensorflow", "keras", "tensorstore", "pyarrow", "distributed", "pytest")
PROGRAMS = re.compile(r"reprokit\.(agent|__main__)\b|_process$")  # run when they are imported, or in trainings
STREAMS = ("stdin", "stdout", "stderr")
Payload = dict[str, Any]


@dataclass
class CommandServer:
    """The server of one process of the tests, started when the first command is run."""

    program: str
    process: subprocess.Popen[bytes] | None = None
    _environment: Mapping[str, str] = field(default_factory=dict)
    _conditions: tuple[object, ...] = ()
    _requests: socket.socket | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Have the server start with these variables, once there is something to do."""
        self._environment = dict(environment)
        self._conditions = _conditions(environment)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with these variables would be the same in a process that began with others."""
        return _conditions(environment) == self._conditions

    def run(
        self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], limit: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without input; both outputs are captured."""
        with self._starting:
            if self.process is None:
                self._start()
        assert self._requests is not None
        command = [self.program, *arguments]
        with ExitStack() as stack:
            ours, theirs = map(stack.enter_context, map(closing, socket.socketpair()))
            readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
            given = [readers[0], *writers[1:]]
            socket.send_fds(self._requests, [b"\0"], [theirs.fileno(), *given])
            for descriptor in (*given, writers[0], theirs.detach()):
                os.close(descriptor)
            payload = {"command": command, "directory": str(directory), "environment": dict(environment)}
            ours.sendall(json.dumps(payload).encode())
            ours.shutdown(socket.SHUT_WR)
            replies = stack.enter_context(ours.makefile("r"))
            pid = int(replies.readline())
            try:
                output, errors = _read(readers[1:], limit)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, limit) from None
            status = int(replies.readline())
        return subprocess.CompletedProcess(command, status, output, errors)

    def _start(self) -> None:
        self._requests, theirs = socket.socketpair()
        words = [sys.executable, "-m", "tests.command_server", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                words,
                cwd=Path(__file__).parent.parent,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._stop)

    def _stop(self) -> None:
        assert self.process is not None
        assert self._requests is not None
        self._requests.close()
        self.process.wait()


def _conditions(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return what a process is given that it cannot give itself later, or that is used before Python runs."""
    variables = {name: value for name, value in environment.items() if name.startswith(READ_AT_THE_START)}
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    return variables, ignored, os.sched_getaffinity(0)


def _read(descriptors: Sequence[int], limit: float) -> list[str]:
    """Return what is written to these pipes until their last writer has gone."""
    content = {descriptor: bytearray() for descriptor in descriptors}
    deadline = time.monotonic() + limit
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                content[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    return [data.decode(errors="surrogateescape").replace("\r\n", "\n") for data in content.values()]


def main() -> None:
    """Import what commands import, and fork a process for each request until nobody is left to send one."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_commands()
    _fill_caches()
    gc.collect()
    gc.freeze()  # or each process would copy what a collection touches
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *key.data)
                elif not _accept(requests, selector):
                    return


def _import_commands() -> None:
    """Import all that commands import at once, or when it comes to that."""
    sys.modules.update(dict.fromkeys(NOT_IMPORTED))  # type: ignore[arg-type] # None: there is no such module
    for module in pkgutil.walk_packages(reprokit.__path__, "reprokit.", onerror=lambda _name: None):
        if not PROGRAMS.search(module.name):
            with suppress(Exception):
                importlib.import_module(module.name)
    for name in NOT_IMPORTED:
        del sys.modules[name]


def _fill_caches() -> None:
    """Work out once what each command would: the fields of structs, and regular expressions."""
    from reprokit.verify.categories import environment

    for kind in _subclasses(msgspec.Struct):
        with suppress(NameError, TypeError):  # of a struct that is written, and never read
            msgspec.json.Decoder(kind)
    environment.rule_for("")  # tries the patterns of all rules


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _accept(requests: socket.socket, selector: selectors.BaseSelector) -> bool:
    """Begin what is asked for; returns whether anything was."""
    data, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
    if not data:
        return False
    connection = socket.socket(fileno=descriptors[0])
    with connection.makefile("rb") as file:
        payload = json.load(file)
    pid = os.fork()
    if pid == 0:
        selector.close()
        for other in (requests, connection):
            other.close()
        _become(payload, descriptors[1:])
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    connection.sendall(f"{pid}\n".encode())
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
    return True


def _report_end(pidfd: int, pid: int, connection: socket.socket) -> None:
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection, suppress(OSError):  # of a command that took too long
        connection.sendall(f"{status}\n".encode())


def _become(payload: Payload, descriptors: Sequence[int]) -> NoReturn:
    """Be the command from here on, and end as an interpreter ends."""
    status = 1
    try:
        for number, (name, descriptor) in enumerate(zip(STREAMS, descriptors, strict=True)):
            os.dup2(descriptor, number)
            os.close(descriptor)
            setattr(sys, name, _opened(name, number))
        os.chdir(payload["directory"])
        os.environ.clear()
        os.environ.update(payload["environment"])
        time.tzset()
        sys.argv = payload["command"]
        sys.path[0] = os.path.dirname(sys.argv[0])
        status = _status_of_command()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _opened(name: str, number: int) -> TextIOWrapper:
    """Return one of the standard streams as Python opens it: whether it can seek is found out there."""
    before = getattr(sys, f"__{name}__")
    stream = open(number, "wb" if number else "rb")  # noqa: SIM115
    facts = {"encoding": before.encoding, "errors": before.errors, "line_buffering": number == 2}
    return TextIOWrapper(stream, newline="\n", **facts)


def _status_of_command() -> int:
    from reprokit.cli.main import main as command

    try:
        command()
    except SystemExit as end:
        status = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    assert isinstance(status, int), "commands end with a number"
    return status


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # of a user who ends the tests
        main()
