"""Where randomness comes from: clocks and process ids as seeds, sources that nothing recorded, system calls."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from reprokit.model.run import SystemCall, SystemCallsFile
from reprokit.model.states import Uncovered, off
from reprokit.profiling import analyze
from reprokit.run_files import rundir
from reprokit.run_files.findings import Finding
from reprokit.run_files.rundir import RunDirectory
from tests.profiling.observed import profiled
from tests.verify.profiles import Writing, event, site
from tests.verify.runs import Building

READS = 552 + 96  # of the head of an entropy file (docs/format.md): its reads of the clock
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc).timestamp()


def found_in(building: Building) -> dict[str, Finding]:
    return {one.subject: one for one in analyze(RunDirectory(building.write())).findings}


@pytest.mark.parametrize(
    ("argument", "origin"),
    [
        (str(int(BEGAN) + 3), "the clock in seconds"),
        (str(BEGAN + 3.25), "the clock in seconds"),
        (str(int((BEGAN + 3) * 1000)), "the clock in milliseconds"),
        (str(int((BEGAN + 3) * 1e9)), "the clock in nanoseconds"),
        (str(int((BEGAN + 3) * 1000) % 2**32), "the clock in milliseconds"),
        ("4711", "the process id"),
        ("42", None),
        ("-7", None),
        (str(int(BEGAN) - 86400), None),
        ("'text'", None),
        ("9" * 4000, None),
    ],
)
def test_seeds_that_look_like_the_clock_or_the_process_id(tmp_path: Path, argument: str, origin: str | None) -> None:
    building = profiled(tmp_path / "run")
    building.start(pid=4711)
    building.add("seed", call="random.seed", argument=argument, where="train.py:3", value=1)
    found = found_in(building)
    assert list(found) == ([f"{origin} as a seed of random.seed"] if origin else [])
    for one in found.values():
        assert (one.verdict, one.where[0].file, one.where[0].line) == ("covered", "train.py", 3)


def test_a_source_that_nothing_recorded_is_suspected(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run")
    known = "RDRAND in {} (/lib/{}): what it gives is real in every run"
    building.run.uncovered = [
        Uncovered(source="program", text="process 0 was stopped"),
        *(
            Uncovered(source="instructions", text=known.format(name, name), module=f"/lib/{name}")
            for name in ("a.so", "b.so")
        ),
    ]
    found = found_in(building)
    assert list(found) == ["process 0 was stopped", "RDRAND in a.so, b.so"]
    assert {(one.kind, one.verdict) for one in found.values()} == {("source", "suspect")}
    rdrand = found["RDRAND in a.so, b.so"]
    assert [asker.file for asker in rdrand.where] == ["/lib/a.so", "/lib/b.so"]
    assert "--hide-rdrand" in rdrand.cures[0].does


def test_system_calls_say_who_opened_what(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run")
    calls = [
        SystemCall(call="openat", source="/dev/nvidia0", program="/usr/bin/python3", pid=7, calls=2),
        SystemCall(call="openat", source="/proc/cpuinfo", program="/usr/bin/python3", pid=7, calls=1),
        SystemCall(call="openat", source="/dev/urandom", program="/usr/bin/head", pid=9, calls=1),
        SystemCall(call="openat", source="/dev/urandom", program="/usr/bin/python3", pid=7, calls=3),
    ]
    rundir.write_json(building.path / rundir.SYSTEM_CALLS, SystemCallsFile(calls=calls, left_out=3))
    found = found_in(building)
    assert {subject: one.verdict for subject, one in found.items()} == {
        "openat /dev/nvidia0": "setting",
        "openat /proc/cpuinfo": "setting",
        "openat /dev/urandom": "covered",
    }
    entropy = found["openat /dev/urandom"]
    assert (entropy.calls, entropy.processes) == (4, 2)
    assert [asker.file for asker in entropy.where] == ["/usr/bin/python3", "/usr/bin/head"]


def test_what_an_agent_started_to_measure_is_none_of_the_trainings_sources(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run", [{"kind": "helper", "pid": 8}])
    calls = [
        SystemCall(call="getrandom", source="getrandom", program="python", pid=pid, calls=1) for pid in (7, 8, 9, 10)
    ]
    rundir.write_json(building.path / rundir.SYSTEM_CALLS, SystemCallsFile(calls=calls))
    path = building.write()
    (path / "entropy").mkdir(exist_ok=True)
    for pid, identity in {7: "0", 8: "0/2", 9: "0/2/1", 10: "0/20"}.items():  # the helper made one process
        file = Writing(identity=identity, pid=pid, uncounted=1)
        file.chunk("m", event(1, 0, b"x" * 8))
        file.write(path / "entropy" / f"{pid:016x}-0.entropy")
    found = {one.id: (one.calls, one.processes) for one in analyze(RunDirectory(path)).findings}
    assert found == {
        "source/requests that were not recorded": (2, 2),
        "source/getrandom": (2, 2),
        "system-call/getrandom": (2, 2),
    }


def asking(building: Building, program: str, *threads: str, module: str = "", clock: int = 0) -> Building:
    """Add a process whose threads each asked for entropy once, in this library."""
    file, name = Writing(program=program), building.path / "entropy" / f"{7:016x}-0.entropy"
    for thread in threads:
        file.chunk(thread, site(1, module, 64), event(1, 1, b"x" * 8))
    name.parent.mkdir(exist_ok=True)
    content = bytearray(file.content())
    content[READS : READS + 8] = clock.to_bytes(8, "little")
    name.write_bytes(content)
    return building


def test_threads_of_native_code_that_ask_for_entropy_are_named(tmp_path: Path) -> None:
    module = "/venv/_duckdb.cpython-311-x86_64-linux-gnu.so"
    found = found_in(asking(profiled(tmp_path / "run"), "/usr/bin/python3", "m", "m.1", module=module))
    finding = found[f"2 threads of {module.rpartition('/')[2]}"]
    assert (finding.kind, finding.verdict, finding.is_unwatched, finding.blamed) == ("order", "setting", True, False)
    alone = found_in(asking(profiled(tmp_path / "alone"), "/usr/bin/python3", "m", module=module))
    assert list(alone) == ["getrandom"]


def test_threads_of_python_are_no_threads_of_native_code(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run")
    found = found_in(asking(building, "/usr/bin/python3", "m", "m.1", module="/lib/libpython3.11.so.1.0"))
    assert list(found) == ["getrandom"]


@pytest.mark.parametrize(("program", "named"), [("/usr/bin/mawk", True), ("/opt/python3.12", False)])
def test_recorded_reads_of_the_clock_are_covered(tmp_path: Path, program: str, named: bool) -> None:
    found = found_in(asking(profiled(tmp_path / "run"), program, "m", clock=4))
    assert ("the time of day" in found) is named
    if named:
        clock = found["the time of day"]
        assert (clock.verdict, clock.calls, [asker.file for asker in clock.where]) == ("covered", 4, [program])


@pytest.mark.parametrize(("calendar", "cure"), [(True, "record --clock"), (False, "record without --no-calendar")])
def test_unrecorded_reads_of_the_clock_are_suspected(tmp_path: Path, calendar: bool, cure: str) -> None:
    building = profiled(tmp_path / "run")
    building.run.calendar = calendar
    building.run.uncovered = [Uncovered(source="clock", text="the clock is read by make")]
    (found,) = found_in(building).values()
    assert (found.verdict, found.cures[0].does) == ("suspect", cure)


def test_system_calls_that_were_not_watched_are_noted_with_the_reason(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run", system_calls=off("strace is not on PATH"))
    found = analyze(RunDirectory(building.write()))
    assert any("strace is not on PATH" in note and "shim's own log" in note for note in found.notes)


def test_a_damaged_file_is_noted_and_hides_nothing_else(tmp_path: Path) -> None:
    building = profiled(tmp_path / "run")
    (building.path / rundir.SYSTEM_CALLS).write_text('{"format": 4, "calls": []}\n')
    building.run.uncovered = [Uncovered(source="instructions", text="RDRAND in libfast.so, 2 places")]
    found = analyze(RunDirectory(building.write()))
    assert len(found.findings) == 1
    assert any("was altered" in note for note in found.notes)
