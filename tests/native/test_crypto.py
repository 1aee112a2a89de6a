"""Cryptographic libraries get real entropy in every run, of which nothing is written down."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.run import modules
from tests.native.harness import SOURCES, Shim
from tests.support import Reprokit

ROOT = SOURCES.parent.parent
LEFT_ALONE = [
    "libcrypto.so.3",
    "libcrypto-fb8d5b21.so.3",  # as wheels name their copies
    "libssl.so.1.1",
    "libsodium-6c8f8377.so.26.4.0",
    "cryptography/hazmat/bindings/_rust.abi3.so",
    "_sodium.abi3.so",
    "_bcrypt.abi3.so",
    "cygrpc.cpython-311-x86_64-linux-gnu.so",
    "_ssl.cpython-313-x86_64-linux-gnu.so",
]
PROGRAMS = ["ssh-keygen", "age", "pwgen"]
OTHER_PROGRAMS = ["ssh-keygen2", "mypwgen"]
RECORDED = ["libcrypt-bc2db45e.so.1", "libtraining.so", "other/_rust.abi3.so", "libcrypto/plugin.so"]


@pytest.fixture
def command(build: Callable[..., str], tmp_path: Path) -> Callable[..., list[str]]:
    """The program, and copies of the library under the given names."""
    program = build("crypto.c", "-ldl")

    def of(*names: str, kind: str = "LIBRARY") -> list[str]:
        library = build("crypto.c", "-shared", "-fPIC", f"-D{kind}", output=f"crypto-{kind}")
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, tmp_path / name)
        return [program, *(str(tmp_path / name) for name in names)]

    return of


def lines(output: bytes) -> list[str]:
    return output.decode().split()


def on_disk(shim: Shim, name: str) -> bytes:
    return b"".join(path.read_bytes() for path in (shim.directory / name).rglob("*") if path.is_file())


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_cryptographic_library_is_left_alone(name: str, shim: Shim, command: Callable[..., list[str]]) -> None:
    both = command(name, "libtraining.so")
    runs = [lines(shim.record(both).stdout), *(lines(shim.replay(both).stdout) for _ in range(2))]
    fresh = [value for run in runs for value in run[:4]]
    assert len(set(fresh)) == 3 * 4
    assert runs[0][4:] == runs[1][4:] == runs[2][4:]
    for run, place in ((runs[0], "recorded"), (runs[2], "replayed")):
        written = on_disk(shim, place)
        assert not any(bytes.fromhex(value) in written for value in run[:4])
    assert bytes.fromhex(runs[0][4]) in on_disk(shim, "recorded")
    withheld = [event for _, event in shim.events() if event.withheld]
    # Who asked and for how much is known; stdio reads a whole buffer.
    assert [(event.asked, event.data) for event in withheld[:3]] == [(24, b"")] * 3
    assert {event.source for event in withheld} == {"getrandom", "getentropy", "syscall", "stream"}
    assert {event.module for event in withheld} == {both[1]}


@pytest.mark.parametrize("name", RECORDED)
def test_what_only_looks_like_one_is_recorded(name: str, shim: Shim, command: Callable[..., list[str]]) -> None:
    recorded = shim.record(command(name))
    assert shim.replay(command(name)).stdout == recorded.stdout


@pytest.mark.parametrize("name", [*PROGRAMS, *OTHER_PROGRAMS])
def test_all_that_a_program_for_keys_asks_for_is_left_alone(
    name: str, shim: Shim, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    program, library = command("libtraining.so")
    shutil.copy(program, tmp_path / name)
    recorded = shim.record([str(tmp_path / name), library])
    replayed = shim.replay([str(tmp_path / name), library])
    assert set(lines(recorded.stdout)).isdisjoint(lines(replayed.stdout)) == (name in PROGRAMS)
    written = on_disk(shim, "recorded")
    assert {bytes.fromhex(value) in written for value in lines(recorded.stdout)} == {name not in PROGRAMS}


@pytest.mark.parametrize("name", [LEFT_ALONE[0], LEFT_ALONE[4]])
def test_include_crypto_records_them_too(name: str, shim: Shim, command: Callable[..., list[str]]) -> None:
    plan = {"record_crypto": True}
    recorded = shim.record(command(name), plan=plan)
    for _ in range(2):
        assert shim.replay(command(name), plan=plan).stdout == recorded.stdout
    assert not any(event.withheld for _, event in shim.events())
    assert all(bytes.fromhex(value) in on_disk(shim, "recorded") for value in lines(recorded.stdout))


def test_system_calls_of_its_own_are_left_alone_too(reprokit: Reprokit, command: Callable[..., list[str]]) -> None:
    """Past the shim, where the supervisor answers: by the module that the call comes from."""
    both = command("libcrypto.so.3", "libtraining.so", kind="INLINE")
    runs = [reprokit.run("record", "-o", "recorded", "--", *both).stdout.split()]
    supervisor = reprokit.facts("recorded")["supervisor"]
    if supervisor["state"] != "on":
        pytest.skip(f"no supervisor here: {supervisor}")
    runs += [reprokit.run("replay", "recorded", "-o", f"replayed{number}").stdout.split() for number in range(2)]
    assert len({value for run in runs for value in run[:4]}) == 3 * 4
    assert runs[0][4:] == runs[1][4:] == runs[2][4:]
    assert len(set(runs[0][4:])) == 4
    written = b"".join(path.read_bytes() for path in (reprokit.directory / "recorded").rglob("*") if path.is_file())
    assert [bytes.fromhex(value) in written for value in runs[0]] == [False] * 4 + [True] * 4


def names_in(source: str, table: str) -> list[str]:
    start = source.index(f"{table}[] =")
    return re.findall(r'"([^"]+)"', source[start : source.index("};", start)])


def test_the_lists_are_documented() -> None:
    source = (ROOT / "native" / "recorder" / "site.c").read_text()
    libraries, programs = names_in(source, "libraries"), names_in(source, "programs")
    assert len(libraries) > 20
    assert len(programs) > 20
    assert set(libraries) == set(modules.CRYPTOGRAPHIC)
    text = (ROOT / "docs" / "limitations.md").read_text()
    chapter = text[text.index("## Cryptography is left alone") :]
    assert [name for name in (*libraries, *programs) if f"`{name}" not in chapter] == []
