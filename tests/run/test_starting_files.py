"""A replay starts from the files that its recording found, and nothing of the user's is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.errors import CannotCopy
from reprokit.model.plan import ReplayStart
from reprokit.run import aside_place
from reprokit.run.replay_plan import replay_plan
from reprokit.run.starting_files import started_from
from reprokit.run_files import names, rundir
from reprokit.run_files.rundir import RunDirectory
from tests.support import COMMAND, Reprokit, rest_slow, wait_until

CONNECT = f"{sys.executable} -c \"import sqlite3; c = sqlite3.connect('s.db')"
TABLE = f"{CONNECT}; c.execute('create table t(a)'); c.commit()\""
COUNT = "print(c.execute('select count(*) from t').fetchone())"
ROW = f"{CONNECT}; c.execute('insert into t values (1)'); {COUNT}; c.commit()\""
TRUNCATE = f"wc -c < cut > was; {sys.executable} -c 'import os; os.truncate(\"cut\", 2)'"
VERSION = "n=0; while [ -e logs/v_$n ]; do n=$((n + 1)); done; mkdir -p logs/v_$n; echo m > logs/v_$n/m"
STATIC = (
    '#include <stdio.h>\nint main(void) { FILE *file = fopen("state", "a"); fputs("x", file); return fclose(file); }'
)
RESUMING = "if [ -e ck ]; then read n < ck; else n=0; fi; echo $((n + 1)) > ck; cp ck final"
CASES = {  # what is there before, and a training
    "version": ("", VERSION),
    "version after another": ("mkdir -p logs/v_0; echo old > logs/v_0/m", VERSION),
    "numbered from a listing": ("mkdir train", "mkdir train-$(ls -d train* | wc -l); echo m > train-1/m"),
    "appended log": ("echo 1 > log.csv", "wc -l < log.csv > lines; echo 2 >> log.csv"),
    "skipped if it is there": ("", "if [ -e data ]; then echo > skipped; else echo downloaded > data; fi"),
    "made directory": ("", "mkdir out && mkdir out/empty && echo 1 > out/x"),
    "made hidden directory": ("", "mkdir -p out/.trash && echo 1 > out/x"),
    "skipped if its place is there": ("", "[ -d store ] || (mkdir -p store/.trash store/0 && echo 1 > store/0/m)"),
    "resumed from its own checkpoint": ("", RESUMING),
    "resumed from an earlier checkpoint": ("echo 5 > ck", RESUMING),
    "removed first": ("mkdir out; echo old > out/old", "ls out > listing; rm -r out; mkdir out; echo new > out/new"),
    "empty directory removed first": ("mkdir out", "rmdir out && mkdir out && echo new > out/new"),
    "removed and not there again": ("echo old > old", "cat old > seen && rm old"),
    "rotated log": ("echo old > log", "mv log log.1; echo new > log"),
    "replaced link": ("mkdir a; ln -s a latest", "readlink latest > was; rm latest; mkdir b; ln -s b latest"),
    "truncated by its name": ("echo longer > cut", TRUNCATE),
    "exchanged": ("echo 1 > a; echo 2 > b", "cat a b > was; mv a c && mv b a && mv c b"),
    "table": (TABLE, ROW),
}  # fmt: skip


def files(directory: Path) -> dict[str, bytes | str | None]:
    """All files, links and directories but runs and reprokit's own, with their contents."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(directory.rglob("*"))
        if path.relative_to(directory).parts[0].partition("-")[0] not in ("run", ".reprokit")
    }


def recorded(reprokit: Reprokit, before: str, program: str, *options: str) -> RunDirectory:
    """Record a program of the shell after another one has made what it finds."""
    subprocess.run(["sh", "-c", before], cwd=reprokit.directory, check=True)
    done = reprokit.run("record", "-q", *options, "-o", "run", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    return RunDirectory(reprokit.directory / "run")


def replayed(reprokit: Reprokit, *options: str) -> tuple[str, dict[str, Any]]:
    """Replay the recording; return what is said, and what run.json says of the start."""
    number = len(list(reprokit.directory.glob("run-*")))
    done = reprokit.run("replay", "-q", "run", "-o", f"run-{number}", *options)
    assert done.returncode == 0, done.stderr
    return done.stderr, reprokit.facts(f"run-{number}")["start"]


def kept(reprokit: Reprokit) -> dict[str, str]:
    """The files that were moved away for good, by their names."""
    places = list(reprokit.directory.glob(".reprokit/replaced-*/files"))
    return {
        str(path.relative_to(place)): path.read_text()
        for place in places
        for path in place.rglob("*")
        if path.is_file()
    }


def test_a_replay_finds_what_its_recording_found(reprokit: Reprokit) -> None:
    names = {name: name.replace(" ", "-") for name in CASES}
    lines = [f"mkdir {names[name]}; cd {names[name]}; {before or ':'}; cd .." for name, (before, _) in CASES.items()]
    programs = [f"cd {names[name]} && {{ {program}; }} && cd .." for name, (_, program) in CASES.items()]
    recorded(reprokit, "; ".join(lines), " && ".join(programs))
    before = files(reprokit.directory)
    for _ in range(2):
        said, start = replayed(reprokit)
        assert start["in_place"] == []
        assert "finds these as they are now" not in said
        assert files(reprokit.directory) == before
    assert not list(reprokit.directory.glob(".reprokit/*"))
    done = reprokit.run("verify", "run", "run-1")
    assert (done.returncode, "read files that the other writes" in done.stdout) == (0, False), done.stdout


def test_times_and_modes_of_what_was_found_are_restored_and_others_stay(reprokit: Reprokit) -> None:
    before = "echo 1 > log; chmod 640 log; touch -d 2001-02-03 log; echo 1 > other"
    recorded(reprokit, before, "stat -c '%a %Y' log > seen; echo 2 >> log; touch -d 2002-03-04 old")
    times = {name: (reprokit.directory / name).stat().st_mtime_ns for name in ("old", "other")}
    replayed(reprokit)
    assert (reprokit.directory / "seen").read_text().split()[0] == "640"
    assert reprokit.run("verify", "run", "run-0").returncode == 0
    assert {name: (reprokit.directory / name).stat().st_mtime_ns for name in times} == times


def test_what_the_replay_does_not_write_again_is_put_back_with_its_time(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "[ -e skip ] || { mkdir out; echo 1 > out/once; }; echo 1 > always")
    time = (reprokit.directory / "out" / "once").stat().st_mtime_ns
    (reprokit.directory / "skip").touch()
    before = files(reprokit.directory)
    replayed(reprokit)
    assert files(reprokit.directory) == before
    assert (reprokit.directory / "out" / "once").stat().st_mtime_ns == time


def test_a_file_that_changed_since_the_recording_is_kept_and_said(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "mkdir out; echo weights > out/model; echo 1 > other")
    (reprokit.directory / "out" / "model").write_text("of a later training")
    said, _ = replayed(reprokit)
    assert (reprokit.directory / "out" / "model").read_text() == "weights\n"
    assert kept(reprokit) == {"out/model": "of a later training"}
    assert "replaced files that may be needed are kept in" in said
    replayed(reprokit)  # what the first replay left is the recording's
    assert kept(reprokit) == {"out/model": "of a later training"}


def test_a_log_that_others_appended_to_since_stays_theirs(reprokit: Reprokit) -> None:
    recorded(reprokit, "echo 1 > log", "echo 2 >> log; cp log copy")
    with open(reprokit.directory / "log", "a") as log:
        log.write("of a later training\n")
    replayed(reprokit)
    assert (reprokit.directory / "copy").read_text() == "1\n2\n"
    assert (reprokit.directory / "log").read_text() == "1\n2\nof a later training\n"
    assert kept(reprokit) == {"log": "1\n2\n"}  # the replay's


def test_what_varies_is_replaced_by_the_replay_s_without_copies(reprokit: Reprokit) -> None:
    recorded(
        reprokit, "", f"{sys.executable} -c 'import time; print(time.monotonic_ns())' > out", "--keep-outputs", "0"
    )
    before = files(reprokit.directory)
    for _ in range(2):
        replayed(reprokit)
        assert files(reprokit.directory) != before
        assert kept(reprokit) == {}


def test_a_replay_that_fails_replaces_nothing_of_which_there_is_no_copy(reprokit: Reprokit) -> None:
    program = "echo half > out; [ ! -e fail ] || exit 3; echo whole > out"
    recorded(reprokit, "", program, "--keep-outputs", "0")
    (reprokit.directory / "fail").touch()
    done = reprokit.run("replay", "-q", "run", "-o", "run-0")
    assert done.returncode == 3
    assert ((reprokit.directory / "out").read_text(), kept(reprokit)) == ("half\n", {"out": "whole\n"})


def test_here_starts_among_what_is_there(reprokit: Reprokit) -> None:
    recorded(reprokit, "", VERSION)
    _, start = replayed(reprokit, "--here")
    assert start["here"]
    assert (reprokit.directory / "logs" / "v_1").is_dir()


def test_what_was_not_kept_is_said_and_found_as_it_is(reprokit: Reprokit) -> None:
    subprocess.run(["sh", "-c", "echo 1 > log; echo 1 > other"], cwd=reprokit.directory, check=True)
    command = ["sh", "-c", "wc -l < log > lines; echo 2 >> log; rm -f other"]
    done = reprokit.run("record", "-q", "--keep-found", "0", "-o", "run", "--", *command)
    assert (
        "what 2 files held before was not kept, first log (2 bytes): a replay starts with what is there" in done.stderr
    )
    said, start = replayed(reprokit)
    assert start["in_place"] == [{"path": name, "reason": "not-kept"} for name in ("log", "other")]
    assert said.count("finds these as they are now, and not as its recording did: log (what it held") == 1
    assert (reprokit.directory / "lines").read_text().strip() == "2"
    assert (reprokit.directory / "log").read_text() == "1\n2\n2\n"
    done = reprokit.run("verify", "run", "run-0")
    assert done.returncode == 1
    assert "the replay run-0 found files otherwise than its recording did: log (what it held" in done.stdout


def test_many_processes_that_change_one_file_at_once_keep_it_once(reprokit: Reprokit) -> None:
    (reprokit.directory / "log").write_bytes(data := os.urandom(3 << 20))
    program = "for i in 1 2 3 4 5 6 7 8; do (echo $i >> log) & done; wait; sort -u log | wc -l > /dev/null"
    recording = recorded(reprokit, "", program)
    (copy,) = (recording.path / "found").iterdir()
    assert copy.read_bytes() == data
    (found,) = json.loads((recording.path / "outputs.json").read_text())["found"]
    assert (found["path"], found["kept"]) == ("log", copy.name)


def test_all_processes_share_the_size_of_what_is_kept(reprokit: Reprokit) -> None:
    for number in range(6):
        (reprokit.directory / str(number)).write_bytes(bytes(3000))
    program = "for i in 0 1 2 3 4 5; do (echo x >> $i) & done; wait"
    recording = recorded(reprokit, "", program, "--keep-found", "10K")
    assert [path.stat().st_size for path in (recording.path / "found").iterdir()] == [3000] * 3
    found = json.loads((recording.path / "outputs.json").read_text())["found"]
    assert sorted(file["kept"] is None for file in found) == [False] * 3 + [True] * 3


def test_the_shim_and_the_launcher_leave_out_the_same_directories() -> None:
    source = (Path(__file__).parents[2] / "native" / "recorder" / "found.c").read_text()
    left_out = set(re.findall('"/([^/"]+)/"', source.partition("noise[] = {")[2].partition("}")[0]))
    assert left_out == names.NOISE | {"site-packages", "dist-packages"}


def test_private_keys_are_not_kept(reprokit: Reprokit) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----"
    recording = recorded(reprokit, f"echo '{key}' > key; echo 1 > log", "echo more >> key; echo more >> log")
    assert [path.read_text() for path in (recording.path / "found").iterdir()] == ["1\n"]
    assert reprokit.run("check", "run").returncode == 0


def test_a_directory_with_other_files_stays_and_is_said(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "[ ! -e out ] || echo > was-there; mkdir -p out; echo 1 > out/x")
    (reprokit.directory / "out" / "notes").write_text("of the user")
    said, start = replayed(reprokit)
    assert start["in_place"] == [{"path": "out", "reason": "not-empty"}]
    assert "out (it holds other files)" in said
    assert files(reprokit.directory) == {"out": None, "out/notes": b"of the user", "out/x": b"1\n", "was-there": b"\n"}


def test_a_file_that_another_program_writes_stays_where_it_is(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "echo 1 > log; echo 1 > other")
    with open(reprokit.directory / "log", "a") as log:
        log.write("under way")
        log.flush()
        _, start = replayed(reprokit)
        assert start["in_place"] == [{"path": "log", "reason": "being-written"}]
        assert os.fstat(log.fileno()).st_nlink == 1


def test_links_to_elsewhere_are_not_followed(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "mkdir out; echo 1 > out/x")
    (reprokit.directory / "out").rename(reprokit.directory / "mine")
    (reprokit.directory / "out").symlink_to("mine")
    (reprokit.directory / "mine" / "x").write_text("of the user")
    _, start = replayed(reprokit, "--", "true")
    assert start["in_place"] == [{"path": "out/x", "reason": "not-movable"}]
    assert files(reprokit.directory) == {"mine": None, "mine/x": b"of the user", "out": "mine"}


def test_a_directory_that_cannot_be_written_is_said(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "mkdir out; echo 1 > out/x; echo 1 > y")
    frozen = reprokit.directory / "out" / "x"
    if subprocess.run(["chattr", "+i", str(frozen)], capture_output=True, check=False).returncode:
        pytest.skip("no file can be made immutable here")
    try:
        said, start = replayed(reprokit, "--", "sh", "-c", "echo 2 > y")
    finally:
        subprocess.run(["chattr", "-i", str(frozen)], check=True)
    assert {file["path"]: file["reason"] for file in start["in_place"]} == {"out/x": "not-movable"}
    assert "out/x (it cannot be moved)" in said
    assert files(reprokit.directory) == {"out": None, "out/x": b"1\n", "y": b"2\n"}


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no other file system")
def test_outputs_on_another_file_system_are_set_aside_there(reprokit: Reprokit) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        recorded(
            reprokit, f"echo 1 > {place}/log", f"mkdir {place}/out && echo 1 > {place}/out/x; echo 2 >> {place}/log"
        )
        before = files(Path(place))
        _, start = replayed(reprokit)
        assert files(Path(place)) == before
        assert start["in_place"] == []
        assert sorted(os.listdir(place)) == ["log", "out"]


def test_what_another_program_wrote_meanwhile_stays_where_it_is(reprokit: Reprokit) -> None:
    run = reprokit.start(
        "record", "-q", "-o", "run", "--", "sh", "-c", "touch begun; until [ -e go ]; do sleep 0.1; done"
    )
    wait_until((reprokit.directory / "begun").exists, "the recording")
    (reprokit.directory / "go").write_text("of the user")
    assert run.wait() == 0
    run.communicate()
    _, start = replayed(reprokit)
    assert start["in_place"] == [{"path": "go", "reason": "unseen"}]
    assert (reprokit.directory / "go").read_text() == "of the user"
    assert reprokit.run("ask", "run", "weights").returncode != 0  # it took no step
    assert (reprokit.directory / "go").read_text() == "of the user"


def test_what_a_static_program_wrote_is_set_aside(reprokit: Reprokit) -> None:
    source = reprokit.directory / "program.c"
    source.write_text(STATIC)
    if subprocess.run(["gcc", "-static", "-o", "program", source], cwd=reprokit.directory, check=False).returncode:
        pytest.skip("gcc cannot link statically here")
    recorded(reprokit, "", "./program; ./program; cp state seen")
    supervisor = RunDirectory(reprokit.directory / "run").run.supervisor
    if supervisor is None or not supervisor.is_on:
        pytest.skip("no supervisor can be started here")
    _, start = replayed(reprokit)
    assert start["in_place"] == []
    assert (reprokit.directory / "seen").read_text() == "xx"


def test_files_in_a_home_of_programs_stay(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "mkdir .cache; echo 1 >> .cache/data; cp .cache/data out")
    replayed(reprokit)
    assert (reprokit.directory / "out").read_text() == "1\n1\n"


def test_an_interrupted_replay_puts_back_what_it_did_not_write(reprokit: Reprokit) -> None:
    program = "[ ! -e wait ] || { echo begun > begun; sleep 100; }; mkdir out; echo 1 > out/x"
    recorded(reprokit, "", program)
    (reprokit.directory / "wait").touch()
    before = files(reprokit.directory)
    process = reprokit.start("replay", "run", "-o", "run-0", start_new_session=True)
    wait_until((reprokit.directory / "begun").exists, "the replay")
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert files(reprokit.directory) == {**before, "begun": b"begun\n"}


def test_what_a_killed_replay_set_aside_is_put_back_by_the_next(reprokit: Reprokit) -> None:
    program = "[ ! -e wait ] || echo half > ck; [ ! -e wait ] || sleep 100; echo 1 > ck; mkdir out; echo 1 > out/x"
    recorded(reprokit, "", program)
    before = files(reprokit.directory)
    (reprokit.directory / "wait").touch()
    process = reprokit.start("replay", "run", "-o", "run-0", start_new_session=True)
    wait_until(lambda: files(reprokit.directory).get("ck") == b"half\n", "the replay")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = reprokit.run("replay", "run", "-o", "run-1")
    assert done.returncode == 125
    assert "its launcher is gone, and process" in done.stderr
    os.killpg(process.pid, signal.SIGKILL)
    (reprokit.directory / "wait").unlink()
    wait_until(lambda: reprokit.run("replay", "run", "-o", "run-1").returncode == 0, "the end of all processes")
    assert files(reprokit.directory) == before
    assert kept(reprokit) == {"ck": "half\n"}
    assert not list(reprokit.directory.glob(".reprokit/aside-*"))


@contextmanager
def as_before(recording: RunDirectory) -> Iterator[None]:
    """Leave everything as it is, as a question does."""
    place = recording.path.with_name("run-none")
    with started_from(replay_plan(recording, place, start=ReplayStart.FOUND_AND_BACK), place):
        yield


def in_a_process(action: Callable[[], object]) -> int:
    """Do something in a child process; return how it ended."""
    child = os.fork()
    if not child:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("start", rest_slow([ReplayStart.FOUND, ReplayStart.FOUND_AND_BACK]))
def test_a_kill_at_any_moment_loses_nothing(
    reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch, start: ReplayStart
) -> None:
    before = "echo 1 > log; mkdir old; echo 1 > old/x; ln -s old latest"
    program = (
        "echo 2 >> log; rm -r old; mkdir -p new/deep; echo 1 > new/deep/x; rm latest; ln -s new latest; echo 1 > ck"
    )
    recording = recorded(reprokit, before, program)
    left, moves = files(reprokit.directory), 0

    def dies_at(last: int) -> int:
        """Kill a replay at a move, or just behind it."""
        done = 0

        def move(source: Path, target: Path, moved: Callable[[Path, Path], None] = aside_place.move) -> None:
            nonlocal done
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            moved(source, target)

        def replay() -> None:
            monkeypatch.setattr(aside_place, "move", move)
            place = recording.path.with_name("run-none")
            with started_from(replay_plan(recording, place, start=start), place):
                pass

        return in_a_process(replay)

    while os.WIFSIGNALED(dies_at(moves + 1)):
        moves += 1
        with as_before(recording):
            assert (reprokit.directory / "log").read_text() == "1\n"
            assert (reprokit.directory / "old" / "x").read_text() == "1\n"
            assert not (reprokit.directory / "new").exists()
        assert files(reprokit.directory) == left
    assert moves > 10
    assert files(reprokit.directory) == left
    assert not list(reprokit.directory.glob(".reprokit/*"))


@pytest.mark.slow
def test_two_replays_at_once_lose_nothing(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "while [ -e wait ]; do sleep 0.1; done; echo 1 > out; mkdir made && echo 1 > made/x")
    before = files(reprokit.directory)
    (reprokit.directory / "wait").touch()
    first = reprokit.start("replay", "run", "-o", "run-0")
    wait_until(lambda: not (reprokit.directory / "out").exists(), "the first replay to set files aside")
    second = reprokit.start("replay", "run", "-o", "run-1")
    wait_until((reprokit.directory / "run-1").exists, "the second replay")
    (reprokit.directory / "wait").unlink()
    assert sorted(process.wait() for process in (first, second)) == [0, 1]  # both cannot make one directory
    for process in (first, second):
        process.communicate()
    assert files(reprokit.directory) == before
    assert {file["reason"] for file in reprokit.facts("run-1")["start"]["in_place"]} == {"in-use"}
    assert not list(reprokit.directory.glob(".reprokit/*"))


def test_planted_lists_move_nothing_and_damaged_ones_refuse_a_replay(reprokit: Reprokit) -> None:
    recording = recorded(reprokit, "", "echo 1 > out")
    place = reprokit.directory / ".reprokit" / "aside-planted"
    place.mkdir(parents=True)
    (place / "0").write_text("planted")
    for path in ("../elsewhere", str(reprokit.directory / "elsewhere"), "elsewhere"):
        entries = {"directory": str(reprokit.directory), "replay": str(recording.path), "entries": [{"path": path}]}
        (place / "paths.json").write_text(json.dumps(entries))
        replayed(reprokit)
        assert not (reprokit.directory / "elsewhere").exists()
        assert not (reprokit.directory.parent / "elsewhere").exists()
    (place / "paths.json").write_text("[")
    done = reprokit.run("replay", "run", "-o", "run-refused")
    assert done.returncode == 125
    assert "cannot-copy" in done.stderr
    assert "paths.json: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert (reprokit.directory / "out").read_text() == "1\n"
    assert not (reprokit.directory / "run-refused").exists()


def test_a_list_of_outputs_that_leads_elsewhere_moves_nothing(reprokit: Reprokit) -> None:
    recording = recorded(reprokit, "", "echo 1 > out")
    (reprokit.directory.parent / "mine").write_text("of the user")
    listed = json.loads((recording.path / "outputs.json").read_text())
    listed["files"][0]["path"] = "../mine"
    del listed["check"]
    rundir.write_json(recording.path / "outputs.json", listed)
    facts = recording.run
    facts.outputs = rundir.seal_file(recording.path / "outputs.json")
    rundir.write_json(recording.path / "run.json", facts)
    replayed(reprokit, "--", "sh", "-c", "ls .. > seen")
    assert "mine" in (reprokit.directory / "seen").read_text().split()


def test_a_file_that_came_back_since_a_kill_is_refused(reprokit: Reprokit) -> None:
    recording = recorded(reprokit, "", "echo 1 > out")

    def killed() -> None:
        with as_before(recording):
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.WIFSIGNALED(in_a_process(killed))
    (reprokit.directory / "out").write_text("of the user")
    with pytest.raises(CannotCopy, match="among them out, which is there again: move back"), as_before(recording):
        pytest.fail("which of both is needed, only the user knows")
    assert (reprokit.directory / "out").read_text() == "of the user"


def test_a_recording_of_a_gate_that_resumes_from_its_own_checkpoint_passes(reprokit: Reprokit) -> None:
    subprocess.run(["git", "init", "-q"], cwd=reprokit.directory, check=True)
    done = reprokit.run("gate", "--", "sh", "-c", RESUMING)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_make_builds_again_in_a_replay(reprokit: Reprokit) -> None:
    (reprokit.directory / "Makefile").write_text("model: data\n\tcp data model; echo built >> built\n")
    (reprokit.directory / "data").write_text("1")
    assert reprokit.run("record", "-q", "-o", "run", "--", "make").returncode == 0
    time = (reprokit.directory / "data").stat().st_mtime_ns
    for number in range(2):
        done = reprokit.run("replay", "-q", "run", "-o", f"run-{number}")
        assert "up to date" not in done.stdout
        assert reprokit.run("verify", "run", f"run-{number}").returncode == 0
    assert (reprokit.directory / "data").stat().st_mtime_ns == time


@pytest.mark.slow
def test_a_training_that_resumes_from_its_own_checkpoint_repeats(reprokit: Reprokit) -> None:
    script = Path(__file__).parents[1] / "trainings" / "pytorch_resuming_itself.py"
    for name in ("run", "run-later"):
        assert reprokit.run("record", "-q", "-o", name, "--", sys.executable, str(script)).returncode == 0
        before = files(reprokit.directory)
        assert reprokit.run("replay", "-q", name, "-o", f"{name}-again").returncode == 0
        done = reprokit.run("verify", name, f"{name}-again")
        assert done.returncode == 0, done.stdout
        assert files(reprokit.directory) == before
    assert (reprokit.directory / "log.csv").read_text().split() == list("012345")


def test_the_command_starts_with_signals_as_it_had_them(reprokit: Reprokit) -> None:
    recorded(reprokit, "", "grep -E '^Sig(Blk|Ign)' /proc/self/status > signals")
    done = subprocess.run([COMMAND, "replay", "-q", "run", "-o", "run-0"], cwd=reprokit.directory, check=False)
    assert done.returncode == 0
    assert reprokit.run("verify", "run", "run-0").returncode == 0
