"""Nothing that goes wrong beside the shim harms the program, and nothing recorded is lost."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reprokit import entropy
from tests.native.harness import Shim, run

ROOT = os.geteuid() == 0


@pytest.fixture
def program(build: Callable[..., str]) -> str:
    return build("requests.c")


def recorded_bytes(shim: Shim, name: str = "recorded") -> list[str]:
    return [event.data.hex() for _, event in shim.events(name)]


def test_sigkill_by_itself(shim: Shim, program: str) -> None:
    result = shim.record([program, "16x100", "t8", "kill"])
    assert result.returncode == -signal.SIGKILL
    assert recorded_bytes(shim) == result.stdout.decode().split()
    entropy.check(shim.entropy("recorded"))


@pytest.mark.parametrize("after", [1, 50, 333, 1000, 5000])
def test_sigkill_at_any_moment_keeps_every_byte_that_was_given(after: int, shim: Shim, program: str) -> None:
    environment = shim.environment("recorded", "record")
    with subprocess.Popen([program, "16x10000000"], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(after)]
        process.kill()
        seen += process.stdout.readlines()
    given = [line.decode().strip() for line in seen if line.endswith(b"\n")]
    recorded = recorded_bytes(shim)
    assert len(given) >= after
    assert recorded[: len(given)] == given
    assert len(recorded) - len(given) <= 1  # recorded, and killed before it was printed


def test_file_size_limit(shim: Shim, program: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    result = shim.record([program, "200x500"], preexec_fn=limit)
    assert (result.returncode, result.stderr) == (0, b"")
    given = result.stdout.decode().split()
    assert len(given) == 500
    recorded = recorded_bytes(shim)
    assert 0 < len(recorded) < 500
    assert recorded == given[: len(recorded)]
    [why] = entropy.gave_up(shim.entropy("recorded"))
    assert "file size limit" in why
    assert f"{500 - len(recorded)} later requests" in why


def test_file_size_limit_of_nothing(shim: Shim, program: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    result = shim.record([program, "16"], preexec_fn=limit)
    assert (result.returncode, result.stderr) == (0, b"")
    [why] = entropy.gave_up(shim.entropy("recorded"))
    assert "file size limit" in why


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here; RLIMIT_FSIZE above takes the same way")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_full_disk(small_disk: Path, program: str) -> None:
    shim = Shim(small_disk)
    result = shim.record([program, "200x4000"])
    assert (result.returncode, result.stderr) == (0, b"")
    given = result.stdout.decode().split()
    recorded = recorded_bytes(shim)
    assert recorded == given[: len(recorded)]
    assert 500 < len(recorded) < 4000
    [why] = entropy.gave_up(shim.entropy("recorded"))
    assert "disk was full" in why


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            continue


def test_disk_full_from_the_start(small_disk: Path, program: str) -> None:
    shim = Shim(small_disk)
    environment = shim.environment("recorded", "record")
    fill(small_disk / "filler")
    result = run([program, "16x100", "t16"], environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert len(result.stdout.split()) == 101
    assert any("disk was full" in why for why in entropy.gave_up(shim.entropy("recorded")))
    assert entropy.root_loaded(shim.entropy("recorded"))


def test_many_processes_without_room_are_told_in_few_sentences(tmp_path: Path) -> None:
    for pid in range(1000):
        (tmp_path / f"0123456789abcdef-{pid}-1-28.lost").touch()
    [why] = entropy.gave_up(tmp_path)
    assert why == "1000 processes could not be recorded at all: the disk was full (No space left on device)"


@pytest.mark.parametrize("when", ["removed", "file"])
def test_run_directory_goes_away(when: str, shim: Shim, program: str) -> None:
    environment = shim.environment("recorded", "record")
    directory = shim.entropy("recorded")
    directory.rmdir()
    if when == "file":
        directory.write_text("")
    result = run([program, "16x1000"], environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert len(set(result.stdout.split())) == 1000


def test_closed_standard_descriptors(shim: Shim, program: str) -> None:
    result = shim.record(["sh", "-c", f"exec 0<&- 2>&-; {program} 16x100"])
    assert result.returncode == 0
    assert recorded_bytes(shim) == result.stdout.decode().split()


@pytest.mark.skipif(not ROOT, reason="chroot needs root")
def test_chroot(shim: Shim) -> None:
    script = "import os, sys; os.urandom(8); os.chroot(sys.argv[1]); print(len({os.urandom(200) for _ in range(999)}))"
    result = shim.record([sys.executable, "-c", script, str(shim.directory)])
    assert (result.returncode, result.stdout) == (0, b"999\n")
    assert any("could not be written" in why for why in entropy.gave_up(shim.entropy("recorded")))


def test_plan_of_another_abi(shim: Shim, program: str) -> None:
    environment = shim.environment("recorded", "record")
    plan = shim.directory / "recorded" / "shim.plan"
    data = bytearray(plan.read_bytes())
    data[8] ^= 1
    plan.write_bytes(data)
    result = run([program, "16"], environment)
    assert result.returncode == 0
    assert b"runs without the shim" in result.stderr
    assert entropy.entropy_files(shim.entropy("recorded")) == []


def test_another_preload_beside(shim: Shim, program: str, build: Callable[..., str]) -> None:
    other = build("other_preload.c", "-shared", "-fPIC", output="other.so")
    environment = shim.environment("recorded", "record")
    for order in (f"{environment['LD_PRELOAD']} {other}", f"{other}:{environment['LD_PRELOAD']}"):
        result = run([program, "16", "r8"], shim.environment("recorded", "record") | {"LD_PRELOAD": order})
        assert result.returncode == 0
        assert result.stderr.count(b"other preload: getrandom") >= 1
        again = shim.environment("replayed", "replay", profile="recorded") | {"LD_PRELOAD": order}
        replayed = run([program, "16", "r8"], again)
        assert replayed.stdout == result.stdout


def test_another_preload_has_calls_of_several_versions(shim: Shim, build: Callable[..., str]) -> None:
    """Which the shim asks libc for by version."""
    other = build("other_preload.c", "-shared", "-fPIC", output="other.so")
    environment = shim.environment("recorded", "record")
    order = {"LD_PRELOAD": f"{environment['LD_PRELOAD']} {other}"}
    code = "import os; os.posix_spawn('/bin/true', ['true'], {})"
    result = run([sys.executable, "-S", "-c", code], environment | order)
    assert result.returncode == 0, result.stderr
    assert b"other preload: posix_spawn" in result.stderr


def test_entropy_asked_for_before_the_constructor(shim: Shim, build: Callable[..., str]) -> None:
    library = build("early.c", "-shared", "-fPIC", "-DLIBRARY", output="libearly.so")
    program = build("early.c", library, f"-Wl,-rpath,{Path(library).parent}", output="early")
    recorded = shim.record([program])
    assert recorded.returncode == 0
    assert shim.record([program], "again").stdout != recorded.stdout
    assert shim.replay([program]).stdout == recorded.stdout
    assert shim.fidelity().exact == 2


def test_a_thousand_short_processes(shim: Shim, build: Callable[..., str]) -> None:
    command = ["sh", "-c", f"for i in $(seq 200); do {build('requests.c')} 4 t4; done"]
    recorded = shim.record(command)
    replayed = shim.replay(command)
    assert len(recorded.stdout.split()) == 400
    assert replayed.stdout == recorded.stdout
    assert shim.fidelity().exact == 400


def test_no_descriptor_is_left_open(shim: Shim) -> None:
    script = "import os; os.urandom(100000); print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    assert shim.record([sys.executable, "-c", script]).stdout == run([sys.executable, "-c", script]).stdout


def test_files_are_private(shim: Shim, program: str) -> None:
    shim.record([program, "16"], extra={})
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    assert path.stat().st_mode & 0o777 == 0o600
