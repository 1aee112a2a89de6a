"""The header that C and Python share, and a shim that does not fit it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reprokit import native
from reprokit.errors import ShimMissing


def make_shim(path: Path, source: str) -> Path:
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)
    return path


def test_the_shim_fits() -> None:
    # In a process of its own: the shim would leave no room for the thread-local variables of frameworks.
    script = "from reprokit import native; shim = native.load_shim(); print(shim.reprokit_abi())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == native.constants().RK_ABI


def test_reading_a_profile_leaves_room_for_thread_local_variables() -> None:
    native.checker()
    listed = subprocess.run(["readelf", "-lW", native.supervisor_path()], capture_output=True, text=True, check=True)
    assert "LOAD" in listed.stdout
    assert "TLS" not in listed.stdout


def test_a_shim_of_another_abi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_shim(tmp_path / "other.so", "unsigned reprokit_abi(void) { return 99; }")
    monkeypatch.setattr(native, "shim_path", lambda: other)
    with pytest.raises(ShimMissing, match="has ABI 99, this reprokit needs 6"):
        native.load_shim()


def test_what_is_no_shim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.so"
    other.write_text("not a library")
    monkeypatch.setattr(native, "shim_path", lambda: other)
    with pytest.raises(ShimMissing, match="cannot be loaded"):
        native.load_shim()
    other.unlink()
    with pytest.raises(ShimMissing, match="is missing"):
        native.load_shim()


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
        "reprokit_process_identity",
        "reprokit_thread_identity",
    }
    assert {"getrandom", "read", "fopen", "pthread_create", "execve", "_ZNSt13random_device9_M_getvalEv"} <= names
