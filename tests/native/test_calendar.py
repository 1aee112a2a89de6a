"""The time of day that a replay is told again: the recorded one, and no loop, thread or file waits wrongly for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from reprokit import entropy
from reprokit.entropy.files import ClockRead
from tests.fuzz.profiles import CLOCK, Thread, profile
from tests.native.harness import Shim
from tests.support import training_text

CALENDAR = {"calendar": True}
DAYS = 3 * 86_400 * 10**9  # by which a recording is made older
HOUR = 3600 * 10**9


def reads(shim: Shim, name: str = "recorded") -> list[ClockRead]:
    return [record for _, record in shim.events(name) if isinstance(record, ClockRead)]


def aged(shim: Shim, later: Mapping[int, int] | None = None) -> dict[str, object]:
    """Make the recording of one process days older, and reads from a number on later; return the plan of its replay."""
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    threads: dict[str, Thread] = {}
    moved = -DAYS
    for number, read in enumerate(reads(shim)):
        moved += (later or {}).get(number, 0)
        threads.setdefault(read.thread, Thread(read.thread)).moment(read.place, read.time + moved)
    path.write_bytes(profile(*threads.values()))
    return {**CALENDAR, "recorded_at": time.time_ns() - DAYS}


def test_what_was_told_is_told_again(shim: Shim, build: Callable[..., str]) -> None:
    for path in ("clock_gettime", "gettimeofday", "timespec_get", "threads"):
        recorded = shim.record([build("clock.c"), path], plan=CALENDAR)
        replayed = shim.replay([build("clock.c"), path], plan=CALENDAR)
        assert [line.split()[0] for line in recorded.stdout.splitlines()[:-1]] == [
            line.split()[0] for line in replayed.stdout.splitlines()[:-1]
        ]
        assert (shim.fidelity().clock > 0, shim.fidelity().clock_past, shim.fidelity().requests) == (True, 0, 0)


def test_system_calls_for_the_time_are_answered_too(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("calendar.c"), "syscalls"]
    recorded = shim.record(command, plan=CALENDAR)
    assert (recorded.returncode, shim.replay(command, plan=CALENDAR).stdout) == (0, recorded.stdout)


@pytest.mark.parametrize("polls", ["0", "2", "5", "40"])
def test_a_loop_that_looks_more_or_less_often_moves_no_other_read(
    polls: str, shim: Shim, build: Callable[..., str]
) -> None:
    command = [build("calendar.c"), "polls"]
    recorded = shim.record(command, plan=CALENDAR, extra={"POLLS": "5"})
    replayed = shim.replay(command, plan=aged(shim), extra={"POLLS": polls})
    told = [int(word) - DAYS for word in recorded.stdout.split()]
    assert (replayed.returncode, [int(word) for word in replayed.stdout.split()]) == (0, told)


@pytest.mark.parametrize("polls", ["2", "5", "200"])
def test_a_loop_takes_no_read_of_its_next_turn_an_hour_later(polls: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("calendar.c"), "loops"]
    recorded = shim.record(command, plan=CALENDAR, extra={"POLLS": "5"})
    plan = aged(shim, {5: HOUR, 6: HOUR})
    replayed = shim.replay(command, plan=plan, extra={"POLLS": polls})
    assert replayed.stdout.decode().split()[:2] == ["in", "time"]
    assert int(replayed.stdout.split()[2]) == int(recorded.stdout.split()[2]) - DAYS + HOUR


def test_a_loop_that_goes_on_is_told_real_time_at_last(shim: Shim) -> None:
    """While the recorded time waits for the next read, a loop's time stands; not for ever."""
    script = (
        "import os, time\nstart = time.time()\nend = time.monotonic() + float(os.environ['LONG'])\n"
        "while time.monotonic() < end:\n    last = time.time()\n    time.sleep(0.01)\n"
        "print(last - start)\nprint(time.time() - start)\n"
    )
    command = [sys.executable, "-S", "-c", script]
    shim.record(command, plan=CALENDAR, extra={"LONG": "0.1"})
    replayed = shim.replay(command, plan=aged(shim), extra={"LONG": "3.2"})
    waited, after = map(float, replayed.stdout.split())
    assert 1 < waited < 2
    assert waited <= after < 2


def test_timers_that_ring_at_a_time_of_day(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("calendar.c"), "timers"]
    assert shim.record(command, plan=CALENDAR).stdout == b"in time\n"
    assert shim.replay(command, plan=aged(shim)).stdout == b"in time\n"


def test_files_grow_as_old_as_the_time_that_is_told(shim: Shim, build: Callable[..., str], tmp_path: Path) -> None:
    command = [build("calendar.c"), "ages"]
    recorded = shim.record(command, plan=CALENDAR, cwd=tmp_path)
    assert (recorded.stdout, recorded.stderr) == (b"old enough\n", b"")
    replayed = shim.replay(command, plan=aged(shim), cwd=tmp_path)
    assert (replayed.stdout, replayed.stderr) == (b"old enough\n", b"")
    assert abs((tmp_path / "made").stat().st_mtime - time.time()) < 60  # on the disk it is the real one


def test_other_threads_read_as_often_as_they_like(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("calendar.c"), "threads"]
    recorded = shim.record(command, plan=CALENDAR, extra={"POLLS": "5"})
    assert recorded.returncode == 0
    assert shim.replay(command, plan=CALENDAR, extra={"POLLS": "5"}).stdout == recorded.stdout
    replayed = shim.replay(command, plan=CALENDAR, extra={"POLLS": "50"})
    assert (replayed.returncode, replayed.stdout.splitlines()[:5]) == (0, recorded.stdout.splitlines())
    assert (shim.fidelity().derived, shim.fidelity().moved, shim.fidelity().unused) == (0, 0, 0)


def test_a_loop_that_spins_fills_no_disk(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("calendar.c"), "spin"]
    assert shim.record(command, plan=CALENDAR).stdout == b"over\n"
    [file] = entropy.processes(shim.entropy("recorded"))
    assert file.head.used < 17 << 20
    [text] = entropy.full_calendars(shim.entropy("recorded"))
    assert text.startswith("process 0 of calendar-c read the clock more often than is recorded")
    assert shim.replay(command, plan=CALENDAR).stdout == b"over\n"
    fidelity = shim.fidelity()
    assert fidelity.clock > 10**6
    assert fidelity.clock + fidelity.clock_past == 2_000_001


def test_a_limit_of_the_files_size_ends_the_calendar_and_no_entropy(shim: Shim, build: Callable[..., str]) -> None:
    program = build("clock.c")
    limited = ["bash", "-c", f"ulimit -f 64; exec {program} more_reads_when_replayed"]
    recorded = shim.record(limited, plan=CALENDAR, extra={"READS": "50000"})
    assert (recorded.returncode, len(recorded.stdout.strip())) == (0, 16)
    [file] = [file for file in entropy.processes(shim.entropy("recorded")) if file.head.calendar_full]
    assert (file.head.calendar_full, file.head.gave_up) == (2, 0)
    assert "had no room for more reads of the clock" in entropy.full_calendars(shim.entropy("recorded"))[0]
    assert shim.replay(limited, plan=CALENDAR, extra={"READS": "50000"}).stdout == recorded.stdout


def test_recordings_of_before_have_no_places(shim: Shim, build: Callable[..., str]) -> None:
    """Events of eight bytes, which are told in their order whoever reads."""
    command = [build("calendar.c"), "polls"]
    shim.record(command, plan=CALENDAR, extra={"POLLS": "1"})
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    times = [(10**9 + number) * 10**9 for number in range(6)]
    thread = Thread("m#clock").event(CLOCK, 0x20, times[0].to_bytes(8, "little"))
    for moment in times[1:]:
        thread.repeat(moment.to_bytes(8, "little"))
    path.write_bytes(profile(thread))
    replayed = shim.replay(command, plan={"clock": True}, extra={"POLLS": "1"})
    assert [int(word) for word in replayed.stdout.split()] == [times[0], times[2], times[3], times[5]]


PYTHON = """
import datetime, time
first = time.time()
def read():
    return time.time()
def waits():
    for _ in range(3):
        yield read()
print(first, *waits(), read(), datetime.datetime.now(), time.time_ns())
"""


def test_lines_of_python_are_places(shim: Shim) -> None:
    command = [sys.executable, "-S", "-c", PYTHON]
    recorded = shim.record(command, plan=CALENDAR)
    assert shim.replay(command, plan=CALENDAR).stdout == recorded.stdout
    places = [read.place for read in reads(shim)][-7:]
    assert places[1] == places[2] == places[3]
    assert len(set(places)) == 5
    again = shim.record([sys.executable, "-S", "-c", "# edited\n" + PYTHON], "again", plan=CALENDAR)
    names = [place >> 8 for place in places]
    assert [read.place >> 8 for read in reads(shim, "again")][-7:] == names
    assert again.stdout != recorded.stdout
    edited = shim.replay([sys.executable, "-S", "-c", "# edited\n" + PYTHON], plan=CALENDAR)
    assert edited.stdout == recorded.stdout  # lines of the same functions, in the same order


EXEMPT = """
import os, time
def offset():
    return abs(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - float(os.environ["BOOT"])) < 60
"""


def test_what_signs_requests_is_told_the_real_time(shim: Shim, tmp_path: Path) -> None:
    """A server would refuse what is signed by a time that has passed."""
    for name in ("botocore", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "clocked.py").write_text(EXEMPT)
    script = "import botocore.clocked, elsewhere.clocked\nprint(botocore.clocked.offset(), elsewhere.clocked.offset())"
    command = [sys.executable, "-S", "-c", script]
    extra = {"PYTHONPATH": str(tmp_path), "BOOT": str(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))}
    assert shim.record(command, plan=CALENDAR, extra=extra).stdout == b"True True\n"
    assert shim.replay(command, plan=aged(shim), extra=extra).stdout == b"True False\n"


def test_programs_that_compare_files_with_now_are_told_the_real_time(
    shim: Shim, build: Callable[..., str], tmp_path: Path
) -> None:
    program = tmp_path / "make"
    program.symlink_to(build("calendar.c"))
    shim.record([str(program), "polls"], plan=CALENDAR)
    assert len(reads(shim)) > 0  # the program's own name counts, not a link's
    copy = tmp_path / "ninja"
    copy.write_bytes(Path(build("calendar.c")).read_bytes())
    copy.chmod(0o755)
    shim.record([str(copy), "polls"], "other", plan=CALENDAR)
    assert reads(shim, "other") == []


FOREIGN = r"""
#include <pthread.h>
#include <stdio.h>
#include <time.h>
static void *read_clock(void *unused) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    printf("%ld.%09ld\n", time.tv_sec, time.tv_nsec);
    fflush(stdout);
    return unused;
}
void from_a_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_clock, NULL) == 0) pthread_join(thread, NULL);
}
"""


def test_threads_that_python_does_not_know_read_unrecorded(shim: Shim, tmp_path: Path) -> None:
    """But with --clock; and who reads there is told."""
    (tmp_path / "library.c").write_text(FOREIGN)
    library = tmp_path / "library.so"
    assert os.system(f"gcc -shared -fPIC -o '{library}' '{tmp_path}/library.c' -lpthread") == 0
    command = [sys.executable, "-S", "-c", f"import ctypes; ctypes.CDLL('{library}').from_a_thread()"]
    recorded = shim.record(command, plan=CALENDAR)
    assert {read.thread for read in reads(shim)} == {"m#clock"}
    assert f"clock {library}" in (shim.directory / "recorded" / "modules.paths").read_text().splitlines()
    replayed = shim.replay(command, plan=aged(shim))
    assert abs(float(replayed.stdout) + DAYS / 1e9 - float(recorded.stdout)) < 60
    recorded = shim.record(command, plan={"clock": True})
    assert {read.thread for read in reads(shim)} == {"m#clock", "m.1#clock"}
    assert shim.replay(command, plan={"clock": True}).stdout == recorded.stdout


WATCHED = training_text("watched.py")


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["3", "0.3"])
def test_a_replay_of_another_speed_wakes_no_watchdog(slow: str, shim: Shim) -> None:
    """Its thread reads the clock at real speed, and the training what was recorded."""
    command = [sys.executable, "-S", "-c", WATCHED]
    recorded = shim.record(command, plan=CALENDAR, extra={"SLOW": "1"})
    assert (recorded.returncode, len(recorded.stdout.splitlines())) == (0, 12)
    replayed = shim.replay(command, plan=CALENDAR, extra={"SLOW": slow})
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
