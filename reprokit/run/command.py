"""Resolves the command as execvp would, and determines whether the shim can be loaded into it."""

from __future__ import annotations

import errno
import os
import platform
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from reprokit.core.errors import CommandNotExecutable, CommandNotFound, NoCommand
from reprokit.run.platform_support import ELF_MACHINES

DEFAULT_PATH = "/bin:/usr/bin"  # as glibc's execvp uses if PATH is not set
LINE_LIMIT = 256  # bytes that the kernel reads of a #! line
SCRIPT_LIMIT = 5  # #! lines that the kernel follows

ELF_MAGIC = b"\x7fELF"
ELF_CLASS_64 = 2
PT_INTERP = 3
MAX_SEGMENTS = 1024


class ShimRefusal(msgspec.Struct, frozen=True):
    """The reason why the shim cannot be loaded into a program; empty if it can."""

    why: str = ""
    gains_rights: bool = False  # set-user-ID, set-group-ID or file capabilities
    is_foreign: bool = False  # of another architecture, with other system call numbers


class Command(msgspec.Struct, frozen=True):
    """A command ready to be executed."""

    arguments: tuple[str, ...]  # argv; the first as the user typed it
    program: str  # the path passed to execve
    refusal: ShimRefusal = ShimRefusal()


def resolve(arguments: tuple[str, ...], search_path: str | None, directory: Path) -> Command:
    """Find the program and examine it; raise LaunchError where a shell would exit with 126 or 127."""
    if not arguments or not arguments[0]:
        raise NoCommand("no command to run; give one after --, as in: reprokit record -- python train.py")
    program = find(arguments[0], search_path, directory)
    first_bytes = _first_bytes(directory / program)
    if not first_bytes.startswith((ELF_MAGIC, b"#!")):
        # execvp runs a file in an unknown format by the shell.
        if b"\0" in first_bytes.split(b"\n", 1)[0]:
            problem = "is neither a program of this system nor a script"
            raise CommandNotExecutable(f"{arguments[0]} {problem}; it cannot be run")
        arguments, program = ("/bin/sh", program, *arguments[1:]), "/bin/sh"
    return Command(arguments, program, _refusal(program, arguments, search_path, directory))


def find(name: str, search_path: str | None, directory: Path) -> str:
    """Return the path that execvp would execute for this name."""
    if "/" in name:
        _check_executable(name, directory / name)
        return name
    denied: CommandNotExecutable | None = None
    for entry in (DEFAULT_PATH if search_path is None else search_path).split(os.pathsep):
        candidate = os.path.join(entry, name) if entry else f"./{name}"
        try:
            _check_executable(name, directory / candidate)
        except CommandNotFound:
            continue
        except CommandNotExecutable as error:
            denied = denied or error
            continue
        return candidate
    raise denied or CommandNotFound(f"{name}: no such program on PATH; check its name or give its path")


def _check_executable(name: str, path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise CommandNotFound(f"{name}: no such file; check its path") from None
    except OSError as error:
        raise CommandNotExecutable(f"{name}: {error.strerror}; it cannot be run") from None
    if stat.S_ISDIR(mode):
        raise CommandNotExecutable(f"{name} is a directory; name a program or a script in it")
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise CommandNotExecutable(f"{name} is not executable; use chmod +x, or name its interpreter: python {name}")


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a program; just ELF's magic number if it is executable but not readable."""
    try:
        with open(path, "rb") as file:
            return file.read(LINE_LIMIT)
    except OSError as error:
        if error.errno == errno.EACCES:
            return ELF_MAGIC
        raise CommandNotExecutable(f"{path}: {error.strerror}; it cannot be run") from None


def _refusal(program: str, arguments: tuple[str, ...], search_path: str | None, directory: Path) -> ShimRefusal:
    """Return why the shim cannot be loaded into one of the programs that lead to the final one."""
    for path, first_bytes in chain(program, arguments, search_path, directory):
        with suppress(OSError):
            refusal = ShimRefusal() if first_bytes.startswith(b"#!") else _privilege_refusal(path) or elf_refusal(path)
            if refusal.why:
                return msgspec.structs.replace(refusal, why=f"{path} {refusal.why}")
    return ShimRefusal()


def chain(
    program: str, arguments: tuple[str, ...], search_path: str | None, directory: Path
) -> Iterator[tuple[Path, bytes]]:
    """Yield each path from #! lines and env to the program that will run, with the first bytes of its file."""
    for _ in range(SCRIPT_LIMIT):
        path = directory / program
        first_bytes = _first_bytes(path)
        yield path, first_bytes
        if first_bytes.startswith(b"#!"):
            interpreter = _interpreter_line(first_bytes)
            _check_executable(f"{program}: its interpreter {interpreter[0]}", directory / interpreter[0])
            program, arguments = interpreter[0], (*interpreter, program)
            continue
        target = _env_target(arguments) if os.path.basename(program) == "env" else None
        if target is None:
            return
        try:
            program, arguments = find(target, search_path, directory), (target,)
        except (CommandNotFound, CommandNotExecutable):
            return  # env itself reports that it is missing


def _interpreter_line(first_bytes: bytes) -> tuple[str, ...]:
    line = first_bytes.split(b"\n", 1)[0][2:].strip()
    if not line:
        raise CommandNotExecutable("the script's first line names no interpreter after #!; it cannot be run")
    return tuple(os.fsdecode(part) for part in line.split(None, 1))


def _env_target(arguments: tuple[str, ...]) -> str | None:
    """Return the program that env would run, if its options are simple."""
    words = " ".join(arguments[1:]).split() if "-S" in " ".join(arguments[1:2]) else list(arguments[1:])
    return next((word for word in words if not word.startswith("-") and "=" not in word), None)


def _privilege_refusal(path: Path) -> ShimRefusal | None:
    """Return why the loader would ignore a preload: a program that gains rights runs in secure mode."""
    status = path.stat()
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return ShimRefusal("is setuid", gains_rights=True)
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getegid() and status.st_mode & stat.S_IXGRP:
        return ShimRefusal("is setgid", gains_rights=True)
    with suppress(OSError):
        if os.geteuid() != 0 and os.getxattr(path, "security.capability"):
            return ShimRefusal("has file capabilities", gains_rights=True)
    return None


def elf_refusal(path: Path) -> ShimRefusal:
    """Return why the dynamic loader cannot load the shim into this ELF program."""
    try:
        with open(path, "rb") as file:
            header = file.read(64)
            if not header.startswith(ELF_MAGIC) or len(header) < 64:
                return ShimRefusal("is not an ELF program")
            machine = struct.unpack_from("<H", header, 18)[0]
            if header[4] != ELF_CLASS_64 or header[5] != 1 or machine != ELF_MACHINES.get(platform.machine()):
                return ShimRefusal("is built for another architecture", is_foreign=True)
            return ShimRefusal(_loader_reason(_loader(file, header)))
    except (OSError, struct.error, ValueError, OverflowError):  # an offset beyond what a file can have
        return ShimRefusal()  # unreadable: the end of the run shows whether the shim was loaded


def _loader(file: BinaryIO, header: bytes) -> bytes:
    """Return the path of the program's dynamic loader; empty if it is statically linked."""
    offset = struct.unpack_from("<Q", header, 32)[0]
    entry_size, entries = struct.unpack_from("<HH", header, 54)
    file.seek(offset)
    table = file.read(entry_size * min(entries, MAX_SEGMENTS))
    for start in range(0, len(table) - 55, entry_size or 56):
        kind, _, name_offset, _, _, size = struct.unpack_from("<IIQQQQ", table, start)
        if kind == PT_INTERP:
            file.seek(name_offset)
            return file.read(min(size, os.pathconf("/", "PC_PATH_MAX"))).rstrip(b"\0")
    return b""


def _loader_reason(loader: bytes) -> str:
    if not loader:
        return "is statically linked"
    if b"ld-musl" in loader:
        return "runs on musl, the shim on glibc"
    return ""
