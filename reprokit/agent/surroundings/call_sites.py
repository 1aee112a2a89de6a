"""Tells the shim which lines of the script start a child process; a replay matches children by these lines."""

from __future__ import annotations

import os
import sys
from _thread import _local

from ..core.user_frames import MAX_DEPTH, is_users
from .directory_proxies import OsFunctionProxy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent

    CallSite = tuple[bytes, bytes, bytes]  # lines, names of their files, contents of these files

STARTS = ("posix_spawn", "posix_spawnp", "system")  # functions of os that start a program without a fork of Python's
SERVERS = ("/resource_tracker.py", "/forkserver.py")  # start one helper process, by whichever code needs it first
REQUEST = "reprokit-call-site"  # memory file that a request to the fork server carries as its last descriptor
MAX_DESCRIPTORS = 200  # of a request that gets one more; the kernel passes 253
MAX_SOURCE = 1 << 20  # bytes of each source file that a replay compares


class CallSites:
    """Reports to the shim, for the calling thread, the call site of a child while it is being started."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.started: list[Callable[[str, Any], object]] = []  # called with the function's name and its result
        self._report: Callable[..., object] | None = None
        self._requested: CallSite | None = None  # in a fork server: of the child that it forks next
        self._thread = _local()  # .sites: of the children being started, as a signal's handler may start one meanwhile

    def watch(self) -> None:
        """Watch forks, and the functions that start a program without one."""
        self._agent.listeners.append((("subprocess", "multiprocessing.util"), self._loaded))
        self._agent.listeners.append((("multiprocessing.forkserver",), self._watch_fork_server))
        os.register_at_fork(before=self._before_fork, after_in_parent=self.after, after_in_child=self.after)
        for name in STARTS:
            if hasattr(os, name):  # posix_spawn since Python 3.8
                setattr(os, name, _StartProxy(getattr(os, name), self))

    def _loaded(self, name: str, module: Any) -> None:
        """Watch the function by which subprocess or multiprocessing.util, just imported, starts programs."""
        import _posixsubprocess

        if not isinstance(_posixsubprocess.fork_exec, _StartProxy):
            _posixsubprocess.fork_exec = _StartProxy(_posixsubprocess.fork_exec, self)
        if hasattr(module, "_fork_exec"):  # since Python 3.11
            module._fork_exec = _posixsubprocess.fork_exec

    def _watch_fork_server(self, name: str, module: Any) -> None:
        """Pass call sites from the processes that request a child to the fork server, which forks it."""
        from ..core.patching import replace

        replace(module, "connect_to_new_process", self._requesting)
        replace(sys.modules["multiprocessing.reduction"], "recvfds", self._receiving)

    def _requesting(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        def connect_with_site(fds: list[int]) -> Any:
            file = self.attempt(_site_file, sys._getframe(1)) if len(fds) < MAX_DESCRIPTORS else None
            try:
                return connect(fds if file is None else [*fds, file])
            finally:
                if file is not None:
                    os.close(file)

        return connect_with_site

    def _receiving(self, receive: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def receive_with_site(*arguments: Any, **keywords: Any) -> list[int]:
            fds = receive(*arguments, **keywords)
            self.attempt(self._take_site, fds)
            return fds

        return receive_with_site

    def _take_site(self, fds: list[int]) -> None:
        """Remove the call site from the descriptors of a request, so that neither server nor child sees it."""
        self._requested = None
        if fds and _is_site_file(fds[-1]):
            file = fds.pop()
            try:
                lines, names, contents = os.pread(file, os.fstat(file).st_size, 0).split(b"\0", 2)
                self._requested = (lines, names, contents)
            finally:
                os.close(file)

    def _before_fork(self) -> None:
        self.attempt(self.before, sys._getframe(1))

    def attempt(self, *call: Any) -> Any:
        return self._agent.attempt(*call)

    def before(self, frame: FrameType | None) -> None:
        """Report the call site of a child that this frame is about to start."""
        site, self._requested = self._requested or call_site(frame), None
        if site[0] and self._report is None:
            self._report = _shim_function()
        self._sites().append(site)
        self._report_innermost()

    def after(self) -> None:
        """Withdraw the call site: the child was started, or could not be. Report the one that a handler interrupted."""
        if self._sites():
            self._sites().pop()
        self._report_innermost()

    def _sites(self) -> list[CallSite]:
        """Return the call sites of the children that this thread is starting, the innermost last."""
        sites: list[CallSite] = self._thread.__dict__.setdefault("sites", [])
        return sites

    def _report_innermost(self) -> None:
        """Report the innermost call site of this thread; none if there is none."""
        if self._report is not None:
            sites = self._sites()
            self._report(*(sites[-1] if sites and sites[-1][0] else (None, None, None)))


def start(agent: Agent) -> None:
    """Report the call sites of this process's children; other features find them as agent.shared[CallSites]."""
    sites = agent.shared[CallSites] = CallSites(agent)
    sites.watch()


class _StartProxy(OsFunctionProxy):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._recorder.attempt(self._recorder.before, sys._getframe(1))
        try:
            result = self._original(*arguments, **keywords)
        finally:
            self._recorder.attempt(self._recorder.after)
        for listener in self._recorder.started:
            self._recorder.attempt(listener, self.__name__, result)
        return result


def _shim_function() -> Callable[..., object] | None:
    """Return the shim's reprokit_call_site; None without a shim, or without ctypes, as after a chroot."""
    try:
        from ctypes import CDLL
    except ImportError:
        return None
    return getattr(CDLL(None), "reprokit_call_site", None)


def _site_file(frame: FrameType | None) -> int | None:
    """Return a memory file with the call site; None if there is none, or before Python 3.8."""
    site = call_site(frame)
    if not site[0] or not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create(REQUEST)
    os.write(descriptor, b"\0".join(site))
    return descriptor


def _is_site_file(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{REQUEST} ")
    except OSError:  # without /proc
        return False


def call_site(frame: FrameType | None) -> CallSite:
    """Return the script's lines on the stack, the names of their files, and the files' contents; empty without any."""
    lines: list[str] = []
    sources: dict[str, bytes] = {}
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not lines and file.endswith(SERVERS):
            break
        if is_users(file):
            if file not in sources:
                sources[file] = _source(file)
            lines.append(f"{os.path.basename(file)}:{frame.f_lineno}")
        frame = frame.f_back
    names = [os.path.basename(file) if source else "" for file, source in sources.items()]  # cells of a notebook
    contents = [source or os.fsencode(os.path.basename(file)) for file, source in sources.items()]
    return os.fsencode(" ".join(lines)), os.fsencode(" ".join(names)), b"\n".join(contents)


def _source(file: str) -> bytes:
    """Return the beginning of a file's content; nothing of a pipe, as a read would wait for its writer."""
    if not os.path.isfile(file):
        return b""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, MAX_SOURCE)
    finally:
        os.close(descriptor)
