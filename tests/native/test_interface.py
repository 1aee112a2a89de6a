"""The header that C and Python share, and a shim that does not fit it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.core import native
from reprokit.core.errors import ShimMissing


def make_shim(path: Path, source: str) -> Path:
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)
    return path


def test_the_shim_fits() -> None:
    """It is required, and not loaded: it would leave no room for the thread-local variables of frameworks."""
    script = """
from reprokit.core import native
native.require_shim()
print(native.shim_path().name in open("/proc/self/maps").read())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    script = "import ctypes; print(ctypes.CDLL(None).reprokit_abi())"
    environment = {**os.environ, "LD_PRELOAD": str(native.preload_path())}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == native.constants().RK_ABI


def test_reading_a_profile_leaves_room_for_thread_local_variables() -> None:
    native.checker()
    listed = subprocess.run(["readelf", "-lW", native.supervisor_path()], capture_output=True, text=True, check=True)
    assert "LOAD" in listed.stdout
    assert "TLS" not in listed.stdout


def test_a_shim_of_another_abi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_shim(tmp_path / "other.so", "unsigned reprokit_abi(void) { return 99; }")
    monkeypatch.setattr(native, "supervisor_path", lambda: other)
    with pytest.raises(ShimMissing, match="has ABI 99, this reprokit needs 6"):
        native.require_shim()


@pytest.mark.parametrize("kept", [0, 14, 64, 4000, -1])
def test_a_damaged_shim_is_refused(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(native.shim_path().read_bytes()[:kept])
    monkeypatch.setattr(native, "shim_path", lambda: other)
    with pytest.raises(ShimMissing, match="is damaged: install reprokit again"):
        native.require_shim()
    other.unlink()
    with pytest.raises(ShimMissing, match="is missing: install reprokit on a machine with gcc and cmake"):
        native.require_shim()


def test_what_the_loader_says_of_a_library_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of one for another libc, for which another installation of the same would not help."""
    source = "extern int of_no_libc(void); int call(void) { return of_no_libc(); }"
    other = make_shim(tmp_path / "other.so", source)
    monkeypatch.setattr(native, "supervisor_path", lambda: other)
    with pytest.raises(ShimMissing, match=r"cannot be loaded: .*of_no_libc; .* from its sources on this one"):
        native.require_shim()


def test_what_the_build_read_of_the_header_is_what_stands_in_it() -> None:
    built, parsed = native.interface(), native.parsed_header()
    assert built is not parsed
    for struct in ("rk_plan", "rk_file", "rk_chunk"):
        fields = [(name, field.offset) for name, field in parsed.typeof(f"struct {struct}").fields]
        assert [(name, field.offset) for name, field in built.typeof(f"struct {struct}").fields] == fields
    assert native.constants().RK_RUN_PATH == parsed.dlopen(None).RK_RUN_PATH


def test_only_the_interposed_calls_and_the_interface_are_exported() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", native.shim_path()], capture_output=True, text=True, check=True
    )
    names = {line.split()[2] for line in listed.stdout.splitlines()}
    assert not {name for name in names if name.startswith("rk_")}
    assert {name for name in names if name.startswith("reprokit")} == {
        "reprokit_abi",
        "reprokit_call_site",
        "reprokit_check",
        "reprokit_first_wrong",
        "reprokit_process_identity",
        "reprokit_thread_identity",
    }
    assert {"getrandom", "read", "fopen", "pthread_create", "execve", "_ZNSt13random_device9_M_getvalEv"} <= names
