"""The shim from Python: where it is, what its header says, whether it fits this reprokit.

``urandom_hook.h`` is read through cffi, so that the constants and file layouts stand in one place
only. The shim is never loaded into this process: libc keeps little room for the thread-local variables
of libraries that come late, and some interpreters leave too little of it.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from reprokit.core.errors import LibraryMissing, ShimMissing, needed_for

_PACKAGE = Path(__file__).parent.parent / "_shim"
_BEGIN, _END = "/* reprokit: begin of what cffi reads */", "/* reprokit: end of what cffi reads */"
_MASK = (1 << 64) - 1
_K1, _K2, _K3 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9

_ELF = struct.Struct("<4s36xQ12xH2x")  # the header: its magic number, offset and number of the section headers
SECTION_HEADER_SIZE = 64


def shim_path() -> Path:
    """Return the shim, which glibc's loader loads for the library of preload_path()."""
    return _PACKAGE / "liburandom_hook.so"


def preload_path() -> Path:
    """Return the library that is put under LD_PRELOAD (native/loader/loader.c)."""
    return _PACKAGE / "liburandom_hook_loader.so"


def supervisor_path() -> Path:
    """Return the library that answers what the shim cannot reach, in the launcher's own process."""
    return _PACKAGE / "libreprokit_supervisor.so"


def trail_path() -> Path:
    """Return the library with which the agent digests the steps of a training."""
    return _PACKAGE / "libreprokit_trail.so"


def header_path() -> Path:
    """Return the path of urandom_hook.h: of the installed package, else of the checkout."""
    installed = _PACKAGE / "urandom_hook.h"
    return installed if installed.exists() else Path(__file__).parents[2] / "native" / "urandom_hook.h"


def parsed_header(module: str = "urandom_hook", path: Path | None = None) -> Any:
    """Return a cffi.FFI that has read the part of a header, by default urandom_hook.h, that is meant for it."""
    import cffi

    path = path or header_path()
    try:
        text = path.read_text(encoding="utf-8")
        declarations = text[text.index(_BEGIN) : text.index(_END)]
    except (OSError, ValueError) as error:
        raise ShimMissing(f"{path} cannot be read ({error}); reinstall reprokit") from None
    ffi = cffi.FFI()
    ffi.set_source(module, None)
    ffi.cdef(declarations)
    return ffi


@lru_cache(maxsize=1)
def interface() -> Any:
    """Return the constants, structs and calls of urandom_hook.h: as the build has read them, else read now.

    Reading a header takes cffi's parser 70 ms, which every record and replay would wait for.
    """
    try:
        return importlib.import_module("reprokit._shim.interface").ffi
    except ImportError:
        return parsed_header()


@lru_cache(maxsize=1)
def constants() -> Any:
    """Return the #defines and enums of the header as attributes; needs no shim."""
    return interface().dlopen(None)


@lru_cache(maxsize=1)
def artifacts() -> tuple[Any, Any]:
    """Return the cffi.FFI and the library of native/artifacts, which compares what trainings write.

    An installation without compiled parts has the same by NumPy.
    """
    path, checkout = _PACKAGE / "libreprokit_artifacts.so", Path(__file__).parents[2] / "native" / "artifacts"
    try:
        ffi = importlib.import_module("reprokit._shim.artifacts_interface").ffi
    except ImportError:
        installed = _PACKAGE / "compare.h"
        header = installed if installed.exists() else checkout / "compare.h"
        ffi = parsed_header("reprokit_artifacts", header)
    if not path.exists():
        with needed_for(f"comparing without {path.name}, which was not compiled here,", "numpy"):
            from reprokit.core.numpy_comparison import NumpyComparison

        return ffi, NumpyComparison(ffi)
    try:
        library = ffi.dlopen(str(path))
    except OSError as error:
        raise LibraryMissing(_refused(path, error)) from None
    if library.rka_abi() != library.RKA_ABI:
        raise LibraryMissing(f"{path} does not fit this reprokit; reinstall reprokit")
    return ffi, library


def require_shim() -> None:
    """Raise ShimMissing unless the shim is built, can be loaded, and is of this reprokit."""
    for path in (shim_path(), preload_path(), supervisor_path()):
        if not path.exists():
            raise ShimMissing(f"{path} is missing: install reprokit on a machine with gcc and cmake")
        if defect := _defect(path):
            raise ShimMissing(f"{path} {defect}")
    _supervisor()  # built together with the shim: its ABI number is the shim's


def _supervisor() -> Any:
    path = supervisor_path()
    try:
        library = interface().dlopen(str(path))
    except OSError as error:
        raise ShimMissing(_refused(path, error)) from None
    abi, expected = library.reprokit_abi(), constants().RK_ABI
    if abi != expected:
        raise ShimMissing(f"{path} has ABI {abi}, this reprokit needs {expected}; reinstall reprokit")
    return library


def _refused(path: Path, error: OSError) -> str:
    """Return what the dynamic loader said about a library, and what to do about it."""
    advice = "if it was built on another machine, install reprokit from its sources on this one"
    return f"{path} cannot be loaded: {error}; {_defect(path) or advice}"


def _defect(path: Path) -> str:
    """Return what keeps a library from being loaded and what to do about it; empty if its file shows nothing."""
    if not os.access(path, os.R_OK):
        return "may not be read by this user: change its mode"
    if _is_damaged(path):
        return "is damaged: install reprokit again"
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        return "lies on a file system that is mounted noexec: install reprokit elsewhere"
    return ""


def _is_damaged(path: Path) -> bool:
    """Return whether a library is no ELF file, or lacks its end, where the section headers are."""
    with open(path, "rb") as file:
        header, size = file.read(_ELF.size), os.fstat(file.fileno()).st_size
    if len(header) < _ELF.size:
        return True
    magic, section_headers, count = _ELF.unpack(header)
    return bool(magic != b"\x7fELF" or section_headers + count * SECTION_HEADER_SIZE > size)


def _step(value: int, word: int) -> int:
    value = (value ^ word) * _K1 & _MASK
    return value ^ value >> 32


def check_in_python(data: bytes, seed: int = 0) -> int:
    """Return the check of entropy files (native/recorder/check.c), where the shim cannot be loaded."""
    size = len(data)
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, size, 8)]
    value = seed ^ size * _K2 & _MASK
    blocks = size // 32
    if blocks:
        lanes = [(seed + k) & _MASK for k in (_K1, _K2, _K3, 0)]
        for i in range(4 * blocks):
            lanes[i % 4] = _step(lanes[i % 4], words[i])
        for lane in lanes:
            value = _step(value, lane)
    for word in words[4 * blocks :]:
        value = _step(value, word)
    value = (value ^ value >> 29) * _K3 & _MASK
    return value ^ value >> 32


def first_wrong(records: bytes, size: int, first: int) -> int:
    """Return the place of the first of a trail's records that does not match its check; their number if all do."""
    try:
        ffi, library = interface(), _supervisor()
    except ShimMissing:
        return next(
            (
                at // size
                for at in range(0, len(records), size)
                if _is_wrong(records[at : at + size], first + at // size)
            ),
            len(records) // size,
        )
    return int(library.reprokit_first_wrong(ffi.from_buffer(records), len(records) // size, size, first))


def _is_wrong(record: bytes, number: int) -> bool:
    return int.from_bytes(record[:4], "little") != (check_in_python(record[4:], number) & 0xFFFFFFFF or 1)


@lru_cache(maxsize=1)
def checker() -> Callable[[bytes, int], int]:
    """Return check(data, seed): the supervisor library's where it can be loaded, else Python's."""
    try:
        ffi, library = interface(), _supervisor()
    except ShimMissing:
        return check_in_python

    def check(data: bytes, seed: int) -> int:
        return int(library.reprokit_check(ffi.from_buffer(data), len(data), seed))

    return check
