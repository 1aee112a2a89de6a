"""The shim built with AddressSanitizer and UBSan, and with ThreadSanitizer: every path in C, and no report."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.harness import SOURCES, Shim, run
from tests.native.test_hazards import HAZARDS
from tests.native.test_paths import C_PATHS, CPP_PATHS, GLIBC_2_36, stdin_of

pytestmark = pytest.mark.slow

ROOT = SOURCES.parent.parent
# ThreadSanitizer's runtime crashes in them, with and without the shim.
UNKNOWN_TO_TSAN = {"c11_thread"}
# 300 shells of the same kind: 10 seconds under ThreadSanitizer, for nothing that popen does not try.
SLOW = {"many_popens"}
# What is replayed goes another way than what was recorded: events are moved between threads, and derived.
OTHER_WAYS = [("threads", "threads_of_threads"), ("threads_of_threads", "threads"), ("many", "threads")]


@dataclass(frozen=True)
class SanitizedShim(Shim):
    """The shim as one sanitizer watches it."""

    built: Path

    @property
    def library(self) -> Path:
        link = self.directory / "shim.so"
        if not link.exists():
            self.directory.mkdir(exist_ok=True)
            link.symlink_to(self.built)
        return link


@dataclass(frozen=True)
class Sanitizer:
    """What one build can have of the compiler's sanitizers, the shim built with it, and its programs."""

    name: str
    shim: Path
    build: Callable[..., str]

    def program(self, source: str) -> str:
        return self.build(source, f"-fsanitize={self.name}", "-g", output=f"{self.name}-{source}")

    def command(self, source: str, *arguments: str) -> list[str]:
        # ThreadSanitizer wants its fixed addresses; reprokit switches the randomization off as well.
        return ["setarch", "-R", self.program(source), *arguments]


def has_runtime(sanitizer: str) -> bool:
    command = ["gcc", f"-fsanitize={sanitizer}", "-x", "c", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=b"int main(void) { return 0; }", capture_output=True).returncode == 0


def build_shim(sanitizer: str) -> Path:
    """Build it below build/, once for all workers and again only after a change."""
    directory = ROOT / "build" / f"sanitize-{sanitizer}"
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["-S", str(ROOT), "-B", ".", f"-DREPROKIT_SANITIZE={sanitizer}"], ["--build", "."]):
            done = subprocess.run(["cmake", *command], cwd=directory, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return directory / "liburandom_hook.so"


@pytest.fixture(scope="session", params=["address,undefined", "thread"])
def sanitizer(request: pytest.FixtureRequest, build: Callable[..., str]) -> Sanitizer:
    if not has_runtime(request.param):
        pytest.skip(f"this gcc comes without the runtime of -fsanitize={request.param}")
    found = Sanitizer(request.param, build_shim(request.param), build)
    tried = run(found.command("requests.c", "16"))
    if tried.returncode != 0:
        pytest.skip(f"programs built with this sanitizer do not run here: {tried.stderr.decode()}")
    return found


def holds(sanitizer: Sanitizer, directory: Path, recorded: list[str], replayed: list[str], path: str = "") -> None:
    shim = SanitizedShim(directory / "runs", sanitizer.shim)
    first = shim.record(recorded, stdin=stdin_of(path), cwd=directory)
    assert (first.returncode, first.stderr) == (0, b"")
    second = shim.replay(replayed, stdin=stdin_of(path), cwd=directory)
    assert (second.returncode, second.stderr) == (0, b"")
    assert second.stdout == first.stdout or recorded != replayed
    assert recorded != replayed or shim.fidelity().exact == shim.fidelity().requests
    assert shim.events()


@pytest.mark.parametrize("path", C_PATHS)
def test_c(path: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    if sanitizer.name == "thread" and path in UNKNOWN_TO_TSAN:
        pytest.skip("the runtime of ThreadSanitizer knows no thrd_create, and crashes with and without the shim")
    link = tmp_path / "link"
    link.symlink_to("/dev/urandom")
    command = sanitizer.command("paths.c", path, str(link))
    holds(sanitizer, tmp_path, command, command, path)


@pytest.mark.parametrize("path", GLIBC_2_36)
def test_arc4random(path: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    command = sanitizer.command("paths.c", path)
    if run(command).returncode == 97:
        pytest.skip("this glibc has no arc4random")
    holds(sanitizer, tmp_path, command, command)


@pytest.mark.parametrize("path", CPP_PATHS)
def test_cpp(path: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    if path == "random_device_rdrand" and "rdrand" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no RDRAND")
    command = sanitizer.command("paths.cpp", path)
    holds(sanitizer, tmp_path, command, command)


@pytest.mark.parametrize("hazard", [hazard for hazard in HAZARDS if hazard not in SLOW])
def test_hazard(hazard: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    command = sanitizer.command("hazards.c", hazard)
    shim = SanitizedShim(tmp_path / "runs", sanitizer.shim)
    for done in (shim.record(command, cwd=tmp_path), shim.replay(command, cwd=tmp_path)):
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("path", ["polls", "loops", "syscalls", "timers", "ages", "threads"])
def test_the_time_of_day(path: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    """Loops look once more in the replay, so that nothing recorded fits."""
    command, plan = sanitizer.command("calendar.c", path), {"calendar": True}
    shim = SanitizedShim(tmp_path / "runs", sanitizer.shim)
    first = shim.record(command, plan=plan, cwd=tmp_path, extra={"POLLS": "5"})
    second = shim.replay(command, plan=plan, cwd=tmp_path, extra={"POLLS": "6"})
    assert [(done.returncode, done.stderr) for done in (first, second)] == [(0, b"")] * 2
    assert second.stdout.splitlines()[0] == first.stdout.splitlines()[0] or path == "polls"
    assert shim.fidelity().clock > 0


@pytest.mark.parametrize(("recorded", "replayed"), OTHER_WAYS)
def test_another_way(recorded: str, replayed: str, sanitizer: Sanitizer, tmp_path: Path) -> None:
    holds(sanitizer, tmp_path, sanitizer.command("paths.c", recorded), sanitizer.command("paths.c", replayed))


def test_a_report_is_noticed(sanitizer: Sanitizer, tmp_path: Path) -> None:
    """The arrangement itself: an error of each kind is reported and ends the program with 66."""
    shim = SanitizedShim(tmp_path / "runs", sanitizer.shim)
    for mistake in sanitizer.name.split(","):
        done = shim.record(sanitizer.command("mistakes.c", mistake))
        assert done.returncode == 66
        assert b"Sanitizer" in done.stderr or b"runtime error" in done.stderr
