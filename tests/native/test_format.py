"""The entropy file: damage anywhere is found, by the seal and by the records' own checks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit import entropy
from reprokit.core import native
from reprokit.core.errors import ReprokitError, RunDamaged, RunTooNew
from reprokit.run import shim_plan
from tests.native.harness import Shim
from tests.native_sources import NATIVE

MUTABLE = range(552, 1024)  # of the head: counters, which only the seal protects
USED = range(552, 560)


@pytest.fixture
def profile(shim: Shim, build: Callable[..., str]) -> Path:
    shim.record([build("requests.c"), "16", "16x3", "t8", "r5"])
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    return path


def read_all(path: Path) -> list[object]:
    return list(entropy.EntropyFile(path).records())


def test_the_check_is_the_same_in_c_and_in_python() -> None:
    in_c = native.checker()
    assert in_c is not native.check_in_python

    @given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
    def same(data: bytes, seed: int) -> None:
        assert in_c(data, seed) == native.check_in_python(data, seed)

    same()


def test_the_check_finds_every_flipped_bit() -> None:
    data = os.urandom(77)
    checks = {native.check_in_python(data)}
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        checks.add(native.check_in_python(bytes(flipped)))
    assert len(checks) == 8 * len(data) + 1


def test_chacha20_gives_the_blocks_of_rfc_8439(tmp_path: Path) -> None:
    # Appendix A.1, test vectors 1 and 2: key and nonce zero, counter 0 and 1.
    source = tmp_path / "vectors.c"
    source.write_text(
        '#include <stdio.h>\n#include "recorder/chacha20.h"\nint main(void) { uint8_t key[32] = {0}, block[64];\n'
        "for (int c = 0; c < 2; c++) { rk_chacha20(key, 0, c, block);\n"
        'for (int i = 0; i < 64; i++) printf("%02x", block[i]); puts(""); } }'
    )
    chacha20, program = NATIVE / "recorder" / "chacha20.c", tmp_path / "vectors"
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-I", NATIVE, source, chacha20, "-o", program], check=True)
    first, second = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert first == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert second == (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_the_header_says_what_python_says() -> None:
    constants = native.constants()
    assert (constants.RK_HEAD, constants.RK_CHUNK, constants.RK_CHUNK_MAGIC) == (1024, 48, 0x4B4E4843)
    assert len(entropy.files.SOURCES) == constants.RK_SOURCES
    assert len(entropy.files.MATCHES) == constants.RK_MATCHES
    ffi = native.interface()
    assert ffi.sizeof("struct rk_file") == entropy.files.HEAD
    assert ffi.offsetof("struct rk_file", "head_check") == 544
    assert ffi.offsetof("struct rk_file", "used") == USED.start
    assert shim_plan.MODES == {"record": constants.RK_MODE_RECORD, "replay": constants.RK_MODE_REPLAY}
    assert shim_plan.POLICIES["live"] == constants.RK_POLICY_LIVE


@pytest.mark.slow
def test_a_flipped_bit_of_any_byte_breaks_the_seal(profile: Path) -> None:
    facts = entropy.summarize(profile.parent)
    data = profile.read_bytes()
    entropy.check(profile.parent, facts)
    for offset in range(len(data)):
        profile.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :])
        with pytest.raises((RunDamaged, RunTooNew)):
            entropy.check(profile.parent, facts)


@pytest.mark.slow
def test_every_cut_breaks_the_seal(profile: Path) -> None:
    facts = entropy.summarize(profile.parent)
    data = profile.read_bytes()
    for length in range(len(data)):
        profile.write_bytes(data[:length])
        with pytest.raises(RunDamaged):
            entropy.check(profile.parent, facts)


def test_without_a_seal_the_records_tell(profile: Path) -> None:
    data = profile.read_bytes()
    whole = read_all(profile)
    used = entropy.EntropyFile(profile).head.used
    chunks = entropy.EntropyFile(profile).chunks()
    counts = {offset for chunk in chunks for offset in range(chunk.offset + 32, chunk.offset + 48)}
    unnoticed = set()
    for offset in range(used):
        profile.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :])
        try:
            if read_all(profile) == whole:
                unnoticed.add(offset)
        except (RunDamaged, RunTooNew):
            continue
    # What may go unnoticed holds no event: counters that change all the time, and room not yet written.
    assert all(offset in MUTABLE or offset in counts or data[offset] == 0 for offset in unnoticed)


def test_a_file_that_is_missing_or_added_breaks_the_seal(profile: Path) -> None:
    facts = entropy.summarize(profile.parent)
    copy = profile.with_name("0000000000000000-0.entropy")
    copy.write_bytes(profile.read_bytes())
    with pytest.raises(RunDamaged):
        entropy.check(profile.parent, facts)
    copy.unlink()
    entropy.check(profile.parent, facts)
    profile.unlink()
    with pytest.raises(RunDamaged):
        entropy.check(profile.parent, facts)


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_file_is_refused(kind: str, profile: Path) -> None:
    data = profile.read_bytes()
    profile.unlink()
    if kind == "symlink":
        target = profile.with_name("elsewhere")
        target.write_bytes(data)
        profile.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(profile)
    else:
        profile.mkdir()
    with pytest.raises(ReprokitError):
        entropy.EntropyFile(profile)


@given(st.binary(max_size=4096))
def test_anything_else_is_refused_not_believed(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".entropy") as file:
        file.write(data)
        file.flush()
        with pytest.raises(ReprokitError):
            read_all(Path(file.name))


def test_a_damaged_profile_never_harms_the_program(profile: Path, shim: Shim, build: Callable[..., str]) -> None:
    data = profile.read_bytes()
    used = entropy.EntropyFile(profile).head.used
    command = [build("requests.c"), "16", "16x3", "t8", "r5"]
    for offset in [*range(0, 600, 41), *range(1024, used, 17)]:
        profile.write_bytes(data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :])
        replayed = shim.replay(command)
        assert (replayed.returncode, replayed.stderr) == (0, b"")
        assert len(replayed.stdout.split()) == 6
    for length in (0, 1, 1023, 1024, 1050, 1500):
        profile.write_bytes(data[:length])
        assert shim.replay(command).returncode == 0


def test_a_stream_of_single_bytes_costs_at_most_eight_bytes_each(shim: Shim, build: Callable[..., str]) -> None:
    shim.record([build("requests.c"), "1x100000"])
    facts = entropy.summarize(shim.entropy("recorded"))
    assert facts.events == facts.entropy == 100000
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    assert entropy.EntropyFile(path).size <= 8 * 100000
