"""The names of files that were read: none is lost, torn or noted again, whoever reads them and however that ends."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reprokit.run import data as launched_data
from reprokit.run import sources
from reprokit.run_files import names, rundir, state_files
from reprokit.run_files.rundir import RunDirectory
from tests.support import COMMAND, Reprokit, python

READ = "import os\ndef read(name): os.close(os.open(f'data/{name}', os.O_RDONLY))\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    for number in range(3000):
        (place / str(number)).touch()
    return place


@pytest.fixture(autouse=True)
def data(reprokit: Reprokit, files: Path) -> Path:
    (reprokit.directory / "data").symlink_to(files)
    return files


def noted(run: Path, data: Path) -> list[str]:
    """The names of the data files, one for each line of the run."""
    lines = (os.fsdecode(line.rpartition(rb"\@")[0]) for line in names.read_lines(run))
    return [line.removeprefix(f"{data}/") for line in lines if line.startswith(f"{data}/")]


def read(reprokit: Reprokit, code: str) -> list[str]:
    """What is noted of a program that calls read(name)."""
    done = reprokit.record(*python(READ + code))
    assert done.returncode == 0, done.stderr
    return noted(reprokit.last, (reprokit.directory / "data").resolve())


def test_each_of_many_names_is_noted_once_however_often_it_is_read(reprokit: Reprokit) -> None:
    found = read(reprokit, "for _ in range(5):\n    for number in range(1000): read(number)")
    assert sorted(map(int, found)) == list(range(1000))
    assert len((reprokit.last / "read.paths").read_bytes().splitlines()) < 50
    assert reprokit.run("check", "last").returncode == 0


def test_no_line_is_torn_by_other_threads_or_handlers_of_signals(reprokit: Reprokit) -> None:
    code = """
import itertools, signal, threading
rest = itertools.count(1000)
signal.signal(signal.SIGALRM, lambda *_: read(next(rest)))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def some(first):
    for number in range(first, 1000, 4): read(number)
threads = [threading.Thread(target=some, args=(first,)) for first in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
print(next(rest))
"""
    found = sorted(map(int, read(reprokit, code)))
    assert found == list(range(len(found)))
    assert len(found) >= 1000


def test_forked_children_note_for_themselves_and_do_not_hold_what_their_parent_noted(reprokit: Reprokit) -> None:
    code = """
for number in range(100): read(number)
own = os.environ["REPROKIT_RUN"].replace("//", "") + "/reads/"
assert own in open("/proc/self/maps").read()
for first in (500, 1000, 1500):
    if not os.fork():
        assert own not in open("/proc/self/maps").read()
        for number in range(first, first + 100): read(number)
        os._exit(0)
    assert os.wait()[1] == 0
for number in range(100, 200): read(number)
"""
    expected = [*range(200), *(first + number for first in (500, 1000, 1500) for number in range(100))]
    assert sorted(map(int, read(reprokit, code))) == expected
    assert len(list((reprokit.last / "reads").iterdir())) == 4


def test_what_was_read_before_a_kill_is_known(reprokit: Reprokit, data: Path) -> None:
    code = READ + "for number in range(3000):\n    read(number)\n    print(number, flush=True)"
    with subprocess.Popen(
        [COMMAND, "record", "-o", "run", "--", sys.executable, "-c", code + "\n    number == 900 and os.kill(0, 9)"],
        cwd=reprokit.directory,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        told = process.stdout.read().split()
    assert process.returncode == -signal.SIGKILL  # the launcher too
    assert sorted(map(int, noted(reprokit.directory / "run", data))) == sorted(map(int, told)) == list(range(901))


def test_a_program_that_may_write_no_more_goes_on(reprokit: Reprokit) -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    found = read(reprokit, code + "for number in range(3000): read(number)")
    assert 0 < len(found) < 100


def test_a_full_disk_ends_no_program(reprokit: Reprokit, data: Path) -> None:
    reprokit.script(
        "train.py",
        f"""{READ}
for number in range(300): read(number)
with open("full/rest", "wb", 0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError: pass
for number in range(300, 3000): read(number)
""",
    )
    record = f"{COMMAND} record -o full/run -- {sys.executable} train.py"
    script = f"mount -t tmpfs -o size=3m x full && {record} && cp -r full/run ."
    (reprokit.directory / "full").mkdir()
    command = ["unshare", "-r", "-m", "sh", "-c", script]
    done = subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = sorted(map(int, noted(reprokit.directory / "run", data)))
    assert found[:300] == list(range(300))
    assert len(found) < 3000


def test_what_another_process_wrote_before_is_no_state_that_was_left(reprokit: Reprokit) -> None:
    writes = "import subprocess\nsubprocess.run(['sh', '-c', 'echo 1 > data/other'])\n"
    many = "for number in range(100): read(number)\n"
    read(reprokit, f"{many}{writes}read('other')\nopen('data/99', 'w').close()")
    first = {os.path.basename(path) for path in state_files.read_first(RunDirectory(reprokit.last))}
    assert "99" in first
    assert "other" not in first


def test_files_in_memory_are_noted_and_what_is_shared_there_by_name_is_not(reprokit: Reprokit) -> None:
    code = """
import multiprocessing, os, sys, tempfile
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory("shared" + place[9:].replace("/", ""), create=True, size=10)
lock, array = multiprocessing.Lock(), multiprocessing.Array("d", 100)
tempfile.NamedTemporaryFile(dir=place + ".shm", delete=False).close()  # as glibc's shm_open did before 2.34
data = open(place + "/data").read()
open(place + "/part", "w").write(data)
os.rename(place + "/part", place + "/model.pt")
open(place + "/removed", "w").close()
os.remove(place + "/removed")
shared.close()
shared.unlink()
"""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        Path(place, "data").write_text("rows")
        (segments := Path(f"{place}.shm")).mkdir()
        done = reprokit.record(*python(f"place = {place!r}\n{code}"))
        shutil.rmtree(segments)
        assert done.returncode == 0, done.stderr
    written = json.loads((reprokit.last / "outputs.json").read_text())
    assert [file["path"] for file in written["files"]] == [f"{place}/model.pt"]
    [data] = json.loads((reprokit.last / "environment.json").read_text())["data"]
    assert (data["path"], data["size"]) == (f"{place}/data", 4)
    assert {name for name in names.read(reprokit.last) if name.startswith("/dev/")} == {f"{place}/data"}
    assert state_files.read_first(RunDirectory(reprokit.last)) >= {f"{place}/data"}


def test_scripts_in_directories_that_are_called_like_python_s_or_ours_are_code(reprokit: Reprokit) -> None:
    scripts = ["lib/python/a.py", "lib/python3/b.py", "reprokit/agent/c.py"]
    for script in scripts:
        (reprokit.directory / script).parent.mkdir(parents=True)
        (reprokit.directory / script).write_text("print(1)")
    code = "import sys; sys.path.append('lib/python3')\nfor name in sys.argv[1:]: exec(open(name).read())"
    assert reprokit.record(*python(code), *scripts).returncode == 0
    assert {*scripts} <= {*json.loads((reprokit.last / "environment.json").read_text())["code"]}
    assert not [name for name in names.read(reprokit.last) if "/reprokit/agent/" in name and not name.endswith("c.py")]


def test_what_lies_where_images_have_their_applications_is_noted(reprokit: Reprokit) -> None:
    here = reprokit.directory / ".cache" / "application"  # whose own name says nothing of what it holds
    here.mkdir(parents=True)
    (here / "data").write_text("rows")
    (here / "part.py").write_text(f"print(open('/usr/..{here}/data').read())")
    code = f"import os; os.chdir({str(here)!r}); exec(open('part.py').read())"
    reprokit = Reprokit(here)
    assert reprokit.record(*python(code)).returncode == 0
    facts = json.loads((reprokit.last / "environment.json").read_text())
    assert [one["path"] for one in facts["data"]] == ["data"]
    assert "part.py" in facts["code"]
    lines = [b"/usr/src/app/x", b"/usr/local/app/x", b"/libraries/x", b"/usr/lib/x", b"/usr/local/lib/x", b"/lib/x"]
    noted = reprokit.last / "read.paths"
    noted.write_bytes(b"".join(line + b".csv\n" + line + b".py\n" for line in lines))
    shown, _ = launched_data.with_read_files(reprokit.last, [], set(), here, bool)  # they are not there any more
    expected = ["/libraries/x", "/usr/local/app/x", "/usr/src/app/x"]
    assert [one["path"] for one in shown] == [f"{path}.csv" for path in expected]
    scripts = sources.used(reprokit.last, [], set(), set(), here)
    assert sorted(path for path in scripts if path.endswith("x.py")) == [f"{path}.py" for path in expected]


def test_files_that_the_command_is_given_open_and_code_without_source_are_noted(reprokit: Reprokit) -> None:
    given, compiled = reprokit.directory / "standard\n\\input", reprokit.directory / "model.pyc"
    py_compile.compile(str(reprokit.script("source.py", "print(input(), open('objects.o').read())")), str(compiled))
    (reprokit.directory / "objects.o").write_text("rows")
    given.write_text("yes\n")
    command = [COMMAND, "record", "-o", "run", "--", sys.executable, "-c", "import model"]
    with open(given) as stdin:
        done = subprocess.run(command, stdin=stdin, cwd=reprokit.directory, capture_output=True, text=True, timeout=60)
    assert done.stdout == "yes rows\n", done.stderr
    facts = json.loads((reprokit.directory / "run" / "environment.json").read_text())
    assert {one["path"] for one in facts["data"]} == {given.name, "objects.o"}
    assert "model.pyc" in facts["code"]
    given.write_text("no\n")
    warned = reprokit.run("replay", "run", stdin="yes\n").stderr
    assert "input: its contents differ" in warned


def test_torn_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "read.paths").write_bytes(b"/old\\@70\n/older\n/a\\\\\\@5\n")
    (tmp_path / "written.paths").write_bytes(b"/first\n/old\\\\@7\n")
    assert names.read_at(tmp_path) == {"/old": 70, "/older": None, "/a\\": 5}
    assert names.written_at(tmp_path) == {"/first": 0, "/old\\@7": 7}
    (tmp_path / "reads").mkdir()
    lines = b"/whole\\@6\n\0torn\\@6\n\0tor\0\0\0/next\\@7\n" + bytes(20)
    for number, used in enumerate((8 + len(lines), 1 << 63)):
        (tmp_path / "reads" / f"1-{number}").write_bytes(names.USED.pack(used) + lines)
    (tmp_path / "reads" / "1-3").write_bytes(b"short")
    (tmp_path / "reads" / "1-4").mkdir()
    assert names.read_at(tmp_path) == {"/old": 70, "/older": None, "/a\\": 5, "/whole": 6, "/next": 7}


@pytest.mark.parametrize("number", [7, 900])
def test_a_device_that_was_inherited_is_recorded_whatever_its_number(number: int, reprokit: Reprokit) -> None:
    asks = [
        "sh",
        "-c",
        f"exec {sys.executable} -c 'import os; print(os.read({number}, 8).hex())' {number}</dev/urandom",
    ]
    if number > 9:  # which sh has no way to say
        asks = python(
            f"import os, sys; os.dup2(os.open('/dev/urandom', 0), {number})\n"
            f"os.execv(sys.executable, ['python', '-c', 'import os; print(os.read({number}, 8).hex())'])"
        )
    recorded = reprokit.record(*asks)
    replayed = reprokit.run("replay", "last", "--policy", "strict")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert len(recorded.stdout) == 17


def test_names_are_resolved_as_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "to-file").symlink_to("file")
    (tmp_path / "real" / "gone").symlink_to("nothing")
    resolver = names.Resolver()
    for name in (
        "real/file",
        "link/file",
        "link/to-file",
        "link/gone",
        "link",
        "link/deep/../file",
        "none/x",
        "link/.",
    ):
        path = str(tmp_path / name) if not name.endswith(".") else f"{tmp_path}/{name}"
        assert resolver.file(path) == os.path.realpath(path)
    assert resolver.entry(f"{tmp_path}/link/to-file") == os.path.realpath(tmp_path / "real") + "/to-file"
    assert (resolver.file("/"), resolver.file("/x")) == ("/", "/x")


def test_json_is_written_as_the_library_would(tmp_path: Path) -> None:
    for odd in ("\n", "\udc80", "é\u2028"):
        value = {"empty": [], "nothing": {}, "many": [1, 2.5, 1e300, None, {"text": odd}]}
        rundir.write_json(tmp_path / "file", value)
        text = (tmp_path / "file").read_text()
        assert text == json.dumps(json.loads(text), indent=2) + "\n"
        assert json.loads(text)["many"] == value["many"]


def test_a_device_that_the_program_looked_at_is_recorded(reprokit: Reprokit) -> None:
    code = """
import os
def look(path):
    fd = os.open(path, os.O_RDONLY)
    os.fstat(fd)
    return fd
fd = look("/dev/urandom")
print(os.read(fd, 8).hex(), os.read(look("/proc/sys/kernel/random/uuid"), 36))
os.close(fd)
assert (other := look("data/1")) == fd
os.read(other, 1)
os.dup2(look("/dev/urandom"), fd)
print(os.read(fd, 8).hex())
"""
    recorded = reprokit.record(*python(code))
    replayed = reprokit.run("replay", "last", "--policy", "strict")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
