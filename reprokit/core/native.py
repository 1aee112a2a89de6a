"""The shim from Python: where it is, what its header says, whether it fits this reprokit.

``urandom_hook.h`` is read through cffi, so that the constants and file layouts stand in one place
only. The shim is never loaded into this process: libc keeps little room for the thread-local variables
of libraries that come late, and some interpreters leave too little of it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import LibraryMissing, ShimMissing

if TYPE_CHECKING:
    from reprokit.model.plan import Plan

_PACKAGE = Path(__file__).parent / "_shim"
_BEGIN, _END = "/* reprokit: begin of what cffi reads */", "/* reprokit: end of what cffi reads */"
_MASK = (1 << 64) - 1
_K1, _K2, _K3 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9

_ELF = struct.Struct("<4s36xQ12xH2x")  # the header: its magic number, offset and number of the section headers
SECTION_HEADER_SIZE = 64

MODES = {"record": 1, "replay": 2}
POLICIES = {"strict": 1, "derive": 2, "live": 3}
_PLAN = struct.Struct("<8sIIII32s512s512s512s256sIIIIqI64sI4QII2QIIqqq8x")
_RANKS = {  # as in native/identity.c: variables, and what tells their launch from another one
    "RANK": "",
    "JAX_PROCESS_ID": "",
    "TF_CONFIG": "",
    "HOROVOD_RANK": "",
    "OMPI_COMM_WORLD_RANK": "",
    "MV2_COMM_WORLD_RANK": "",
    "PMIX_RANK": "PMIX_NAMESPACE",
    "PMI_RANK": "PMI_JOBID",
    "PALS_RANKID": "",
    "SLURM_PROCID": "SLURM_STEP_ID",
}


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
    return installed if installed.exists() else Path(__file__).parent.parent / "native" / "urandom_hook.h"


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

    An installation without compiled parts has the same in Python.
    """
    path, checkout = _PACKAGE / "libreprokit_artifacts.so", Path(__file__).parent.parent / "native" / "artifacts"
    try:
        ffi = importlib.import_module("reprokit._shim.artifacts_interface").ffi
    except ImportError:
        installed = _PACKAGE / "compare.h"
        header = installed if installed.exists() else checkout / "compare.h"
        ffi = parsed_header("reprokit_artifacts", header)
    if not path.exists():
        from reprokit.artifact_comparison import PythonComparison

        return ffi, PythonComparison(ffi)
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
    """Return the check of entropy files (native/check.c), where the shim cannot be loaded."""
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


def _path_field(path: Path | None) -> bytes:
    text = b"" if path is None else os.fsencode(path)
    if len(text) > 511:
        raise ShimMissing(f"{path}: the path is longer than 511 bytes; install or run reprokit elsewhere")
    return text


def _tensorflow_rank(config: str) -> str:
    """Return the number of TensorFlow's worker, of which a chief is the first; empty where it is none."""
    try:
        read = json.loads(config)
        kind, index = read["task"]["type"], int(read["task"]["index"])
        return str(index + (kind == "worker" and "chief" in read["cluster"])) if kind in ("chief", "worker") else ""
    except (ValueError, TypeError, KeyError):
        return ""


def _own_ranks() -> bytes:
    """Return the variables, with their values, by which this process knows itself as a rank of a distributed job."""
    values = {name: os.environ.get(name, "") for name in _RANKS}
    values["TF_CONFIG"] = _tensorflow_rank(values["TF_CONFIG"])
    ranks = [f" {name}={value}{_launch(name)} " for name, value in values.items() if re.fullmatch("[0-9]{1,20}", value)]
    return "".join(ranks).encode()[:255]


def _launch(name: str) -> str:
    """Return a check of the name of the launch in which this process has the rank of a variable."""
    launch = os.fsencode(os.environ.get(_RANKS[name], ""))
    return f"@{check_in_python(launch):016x}" if launch else ""


def _printed(plan: Plan) -> tuple[int, ...]:
    """Return which of stdout and stderr are open and to be kept, as bits, and the device and inode of each."""
    bits, files = 0, [0, 0, 0, 0]
    for stream in (0, 1) if plan.console else ():
        with suppress(OSError):
            status = os.fstat(stream + 1)
            bits |= 1 << stream
            files[2 * stream : 2 * stream + 2] = status.st_dev, status.st_ino
    return bits, *files


def _piped() -> tuple[int, int, int]:
    """Return whether standard input is a pipe, and its device and inode."""
    with suppress(OSError):
        status = os.fstat(0)
        if stat.S_ISFIFO(status.st_mode):
            return 1, status.st_dev, status.st_ino
    return 0, 0, 0


def write_shim_plan(path: Path, plan: Plan, preload: Path, python_path: Path) -> None:
    """Write shim.plan (struct rk_plan): what the launcher asks of the shim.

    ``preload`` and ``python_path`` are what the shim puts back into LD_PRELOAD and PYTHONPATH of a child.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(_shim_plan(plan, preload, python_path, os.fstat(fd).st_ctime_ns))


def prepare_found(directory: Path, keep: int) -> None:
    """Create the directory in which shim and supervisor keep what a recording changes, with the size of all copies."""
    directory.mkdir(mode=0o700)
    fd = os.open(directory / "room", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(struct.pack("<q", keep))


def _shim_plan(plan: Plan, preload: Path, python_path: Path, started: int) -> bytes:
    varied = plan.varied
    data = _PLAN.pack(
        b"RKPLAN",
        constants().RK_ABI,
        MODES[plan.mode],
        POLICIES[plan.policy],
        plan.record_crypto,
        plan.key,
        _path_field(plan.profile),
        _path_field(preload),
        _path_field(python_path),
        _own_ranks(),
        plan.keyed,
        plan.clock,
        plan.hide_rdrand,
        varied is not None and varied.backwards,
        0 if varied is None else varied.later * 10**9,
        0 if varied is None else varied.processors,
        b"" if varied is None else varied.host.encode("ascii")[:63],
        *_printed(plan),
        os.getpid(),
        *_piped(),
        MODES[plan.mode] == MODES["replay"],  # its recording wrote down which programs it started
        plan.calendar or plan.clock,
        plan.recorded_at - time.monotonic_ns() if plan.recorded_at else 0,
        time.time_ns() - time.monotonic_ns(),
        started,
    )
    return data + struct.pack("<Q", check_in_python(data))
