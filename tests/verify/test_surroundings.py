"""What runs ran on, from real runs: packages, threads, source and data, in words, and what of it can change results."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.model.states import Uncovered
from reprokit.run_files import names, rundir
from reprokit.verify.categories.environment import RULES, rule_for
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from tests.support import Reprokit, python, rest_slow, training_text

from .runs import Building, float32

SCRIPT = """
import {imports}
with open("out.txt", "w") as file:
    file.write(str({result}))
"""


def script(reprokit: Reprokit, imports: str = "os", result: str = "1") -> None:
    (reprokit.directory / "train.py").write_text(SCRIPT.format(imports=imports, result=result))


def record(reprokit: Reprokit, name: str, *options: str, **environment: str) -> dict[str, Any]:
    """Record the script; environment.json."""
    command = ["record", "-o", name, *options, "--", sys.executable, "train.py"]
    done = reprokit.run(*command, environment=environment)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads((reprokit.directory / name / "environment.json").read_text())
    return facts


def leaves(reprokit: Reprokit) -> dict[str, Difference]:
    """The surroundings of the runs a and b that differ."""
    comparison = compare(reprokit.directory / "a", reprokit.directory / "b")
    found = next(one for one in comparison.tree.children if one.name == "environment")
    return {one.name: one for one in found.leaves() if one.verdict is not Verdict.IDENTICAL}


def package(place: Path, name: str, version: str) -> None:
    """A package as pip leaves it: a module and its facts."""
    for old in place.glob(f"{name}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    facts = place / f"{name}-{version}.dist-info"
    facts.mkdir(parents=True)
    (facts / "RECORD").write_text(f"{name}_module/__init__.py,,\n{facts.name}/RECORD,,\n")
    (place / f"{name}_module").mkdir(exist_ok=True)
    (place / f"{name}_module" / "__init__.py").write_text("")


def test_each_fact_has_a_rule_and_each_rule_a_group() -> None:
    assert {rule.group for rule in RULES.rules} == set(RULES.groups)
    assert rule_for("variables.OMP_NUM_THREADS").meaning.startswith("sums are split over another number of threads")
    assert rule_for("something new").meaning == "nothing is known about this fact"


def test_another_version_of_an_imported_package_can_change_results_and_of_another_not(reprokit: Reprokit) -> None:
    place = reprokit.directory / "packages"
    script(reprokit, "used_module")
    for run, version in (("a", "1.0"), ("b", "2.0")):
        package(place, "used", version)
        package(place, "idle", version)
        facts = record(reprokit, run, PYTHONPATH=str(place))
        assert facts["packages"]["used"] == version
        assert facts["imported"] == ["used"]
    found = leaves(reprokit)
    used = found["packages.used"]
    assert (used.left, used.right, used.can_change_results) == ("1.0", "2.0", True)
    idle = found["packages that were not imported"]
    assert "idle 1.0 against 2.0" in idle.detail
    assert not idle.can_change_results
    assert "packages.idle" not in found


def test_a_package_that_was_built_again_and_code_beside_packages_are_likely_causes(reprokit: Reprokit) -> None:
    place = reprokit.directory
    script(reprokit, "helper, built_module", "helper.X")
    for run in ("a", "b"):
        package(place, "built", "1.0")  # as pip install --target . does
        (place / "helper.py").write_text(f"X = {run!r}")
        facts = place / "built-1.0.dist-info"
        (facts / "RECORD").write_text(f"built_module/__init__.py,sha256={run},1\n")
        for editable in (True, False):
            (facts / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": editable}, "url": "file:///s"}))
            name = f"{run}-editable" if editable else run
            code = record(reprokit, name, PYTHONPATH=f"{place}:{os.environ.get('PYTHONPATH', '')}")["code"]
            assert ("built-1.0.dist-info/RECORD" in code) is not editable
        own = {path for path in code if not path.startswith("/")}
        assert own == {"built-1.0.dist-info/RECORD", "helper.py", "train.py"}
    found = leaves(reprokit)
    assert found["code.built-1.0.dist-info/RECORD"].can_change_results
    assert found["code.helper.py"].can_change_results


def test_a_training_that_was_killed_says_that_nobody_knows_what_it_imported(reprokit: Reprokit) -> None:
    place = reprokit.directory / "packages"
    for run, version in (("a", "1.0"), ("b", "2.0")):
        package(place, "used", version)
        script(reprokit, "os, used_module", "os.kill(os.getpid(), 9)")
        reprokit.run("record", "-o", run, "--", sys.executable, "train.py", environment={"PYTHONPATH": str(place)})
        assert json.loads((reprokit.directory / run / "environment.json").read_text())["imported"] is None
    assert "killed before it could say" in leaves(reprokit)["packages.used"].detail


def test_another_count_of_threads_is_told_in_words_that_help(reprokit: Reprokit) -> None:
    script(reprokit, "numpy")
    for run, threads in (("a", "1"), ("b", "2")):
        record(reprokit, run, OMP_NUM_THREADS=threads)
    found = leaves(reprokit)
    assert "number of threads" in found["variables.OMP_NUM_THREADS"].detail
    assert not any(name.startswith("compute.process") for name in found)  # the variable is told once
    blas = next(leaf for name, leaf in found.items() if name.startswith("compute.openblas") and "threads" in name)
    assert "another OpenBLAS thread count can change the order of sums" in blas.detail


def test_variables_that_are_secret_are_never_recorded_and_harmless_ones_are_told_apart(reprokit: Reprokit) -> None:
    script(reprokit)
    secret = "hunter2-is-the-secret"
    for run, level in (("a", "0"), ("b", "3")):
        record(reprokit, run, TF_CPP_MIN_LOG_LEVEL=level, PL_API_TOKEN=secret, HF_TOKEN=secret, MKL_CBWR="COMPATIBLE")
        for path in (reprokit.directory / run).rglob("*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path
    level_leaf = leaves(reprokit)["variables.TF_CPP_MIN_LOG_LEVEL"]
    assert not level_leaf.can_change_results
    assert "in no computation" in level_leaf.detail


def git(directory: Path, *words: str) -> None:
    names = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *names, *words], cwd=directory, check=True, capture_output=True)


def test_what_is_not_committed_is_seen(reprokit: Reprokit) -> None:
    script(reprokit)
    (reprokit.directory / "settings.yaml").write_text("rate: 1")
    git(reprokit.directory, "init", "-q")
    git(reprokit.directory, "add", "train.py")
    git(reprokit.directory, "commit", "-qm", "first")
    clean = record(reprokit, "a")["git"]
    assert (clean["dirty"], clean["changes"], set(clean["untracked"])) == (False, "", {"settings.yaml"})
    script(reprokit, result="1 + 0")
    (reprokit.directory / "settings.yaml").write_text("rate: 2")
    dirty = record(reprokit, "b")["git"]
    assert (dirty["commit"], dirty["dirty"]) == (clean["commit"], True)
    found = leaves(reprokit)
    assert found["git.changes"].can_change_results
    assert "has other bytes" in found["git.untracked.settings.yaml"].detail
    assert not any("out.txt" in name or name.startswith("git.untracked.a/") for name in found)


def test_files_that_nobody_read_come_last_of_the_likely_causes(reprokit: Reprokit) -> None:
    rows = reprokit.directory / "rows"
    rows.mkdir()
    script(reprokit, result="[open(f'rows/{number}').read() for number in range(120)]")
    git(reprokit.directory, "init", "-q")
    git(reprokit.directory, "add", "train.py")
    git(reprokit.directory, "commit", "-qm", "first")
    for run in ("a", "b"):
        for name in ("other-1", "other-2", *(f"rows/{number}" for number in range(120))):
            (reprokit.directory / name).write_text(run)
        record(reprokit, run)
    done = reprokit.run("verify", "a", "b")
    causes = [line for line in done.stdout.splitlines() if line.startswith("likely cause")]
    assert [line.split()[3] for line in causes] == ["data.rows/*:", "git.untracked.other-1:"]
    assert causes[1].endswith(" (and 1 more: git.untracked.other-2)")


def test_nothing_that_a_checkout_names_is_executed(reprokit: Reprokit) -> None:
    script(reprokit)
    git(reprokit.directory, "init", "-q")
    git(reprokit.directory, "add", "train.py")
    git(reprokit.directory, "commit", "-qm", "first")
    trap = reprokit.script("trap", "#!/bin/sh\ntouch sprung\ncat\n")
    for name in ("core.fsmonitor", "diff.external", "diff.trap.textconv", "diff.trap.command"):
        git(reprokit.directory, "config", name, str(trap))
    (reprokit.directory / ".gitattributes").write_text("*.py diff=trap\n")
    script(reprokit, result="2")
    assert record(reprokit, "a")["git"]["dirty"]
    assert not (reprokit.directory / "sprung").exists()


def test_a_module_beside_the_script_is_part_of_the_code(reprokit: Reprokit) -> None:
    script(reprokit, "helper")
    for run in ("a", "b"):
        (reprokit.directory / "helper.py").write_text(f"X = '{run}'")
        record(reprokit, run)
        (reprokit.directory / "train.py").write_text((reprokit.directory / "train.py").read_text() + "#\n")
    found = leaves(reprokit)
    assert "a module of its own has other bytes" in found["code.helper.py"].detail
    assert "files.train.py" in found
    assert "code.train.py" not in found  # told once


def test_code_that_is_no_module_is_part_of_the_code_and_a_replay_names_it(reprokit: Reprokit) -> None:
    place = reprokit.directory
    (place / "lib").mkdir()
    kinds = ["executed.py", "forgotten.py", "lib/native.so", "program", "run.py", "specified.py"]

    def write(factor: int) -> None:
        for name in (name for name in kinds if name.endswith(".py")):
            (place / name).write_text(f"FACTOR = {factor}\n" + "#" * factor)
        source = f"#include <stdio.h>\nint factor(void) {{ return {factor}; }}\n"
        (place / "native.c").write_text(source + 'int main(void) { printf("%d", factor()); }\n')
        for name, options in (("lib/native.so", ["-shared", "-fPIC"]), ("program", [])):
            subprocess.run(["gcc", *options, "-o", name, "native.c"], cwd=place, check=True)

    write(1)
    (place / "train.py").write_text(training_text("code_of_many_kinds.py"))
    record(reprokit, "a")
    write(2)
    replayed = reprokit.run("replay", "a", "-o", "b")
    assert [name for name in kinds if f"changed: {name}: its contents differ [changed]\n" not in replayed.stderr] == []
    found = {name: leaf for name, leaf in leaves(reprokit).items() if name.startswith("code.")}
    assert sorted(found) == [f"code.{name}" for name in kinds]
    assert all(leaf.can_change_results for leaf in found.values())


def test_declared_data_that_changed_is_a_likely_cause(reprokit: Reprokit) -> None:
    script(reprokit, result="open('data/x').read()")
    (reprokit.directory / "data").mkdir()
    (reprokit.directory / "data" / "y").write_text("same")
    for run in ("a", "b"):
        (reprokit.directory / "data" / "x").write_text(run)
        facts = record(reprokit, run, "--data", "data")
        assert [(one["path"], one["size"], one["declared"]) for one in facts["data"]] == [
            ("data/x", 1, True),
            ("data/y", 4, True),
        ]
    done = reprokit.run("verify", "a", "b")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("different: ")
    causes = [line for line in lines if line.startswith("likely cause")]
    assert causes == lines[1 : 1 + len(causes)]
    assert "data.data/x" in causes[0]
    assert "can change results: the data has other bytes" in causes[0]
    assert not any("random profile" in line for line in causes)  # that of any two recordings differs
    note = next(line for line in lines if line.startswith("note: these are two recordings"))
    assert note.endswith("compare a recording with its replay: reprokit replay a, then reprokit verify a last")


def test_data_that_the_run_removes_is_named_as_what_may_be_the_cause(reprokit: Reprokit) -> None:
    code = """
import os, shutil
shutil.unpack_archive("packed.tar", "unpacked")
print(open("unpacked/rows").read(), open("queue/job").read())
shutil.rmtree("unpacked")
os.remove("queue/job")
"""
    script(reprokit, result=f"exec({code!r})")
    (reprokit.directory / "queue").mkdir()
    for run in ("a", "b"):
        (reprokit.directory / "queue" / "job").write_text(run)
        (reprokit.directory / "rows").write_text("same")
        subprocess.run(["tar", "--mtime=@0", "-cf", "packed.tar", "rows"], cwd=reprokit.directory, check=True)
        facts = record(reprokit, run)
        [removed] = [one for one in facts["data"] if not one["digest"]]
        assert (removed["path"], removed["note"]) == ("queue/job", "removed before the run ended")
        assert {one["path"] for one in facts["data"]} == {"packed.tar", "queue/job"}
    done = reprokit.run("verify", "a", "b")
    assert done.returncode == 1
    assert "note: a cause may be in data that was read: of 1, first queue/job, its bytes were not" in done.stdout
    assert "data.packed.tar" not in done.stdout


def test_a_replay_looks_at_the_declared_data_again(reprokit: Reprokit) -> None:
    script(reprokit)
    (reprokit.directory / "data").write_text("one")
    record(reprokit, "a", "--data", "data")
    (reprokit.directory / "data").write_text("two")
    done = reprokit.run("replay", "a", "-o", "b")
    assert done.returncode == 0
    assert done.stderr.count("changed: data: its contents differ") == 1
    assert "data: its contents differ" in reprokit.facts("b")["changed"]


def test_a_replay_warns_of_data_of_the_same_size_before_its_start(reprokit: Reprokit) -> None:
    script(reprokit, "os", "open('data.bin').read() + open('rows/row1').read()")
    (reprokit.directory / "rows").mkdir()
    for number in range(120):  # one entry with one digest, which only the end of a run has
        (reprokit.directory / "rows" / f"row{number}").write_text("0")
    (reprokit.directory / "data.bin").write_text("one")
    record(reprokit, "a", "--data", "rows")
    kept = os.stat(reprokit.directory / "data.bin")
    (reprokit.directory / "data.bin").write_text("two")
    os.utime(reprokit.directory / "data.bin", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    (reprokit.directory / "rows" / "row1").write_text("1")
    done = reprokit.run("replay", "a", "-o", "b")
    start, _, end = done.stderr.partition("entropy requests")
    assert start.count("changed: data.bin: its contents differ") == 1
    assert "rows/*" not in start
    assert end.count("changed: rows/*: its contents differ") == 1
    assert "data.bin" not in end
    (reprokit.directory / "data.bin").write_text("one")
    (reprokit.directory / "rows" / "row1").write_text("0")
    done = reprokit.run("replay", "a", "-o", "c")
    assert "changed: " not in done.stderr
    (reprokit.directory / "data.bin").write_text("longer")
    start, _, _ = reprokit.run("replay", "a", "-o", "d").stderr.partition("entropy requests")
    assert "changed: data.bin: its contents differ" in start


def test_data_that_is_not_there_is_refused_before_the_start(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "--data", "nowhere", "--", "touch", "started")
    assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)
    assert not (reprokit.directory / "started").exists()


def test_a_large_file_is_sampled_and_many_are_one_entry(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch) -> None:
    from reprokit.run import data

    monkeypatch.setattr(data, "DECLARED_WHOLE", 1 << 20)
    place = reprokit.directory / "data"
    (place / "many").mkdir(parents=True)
    for number in range(data.MANY + 1):
        (place / "many" / str(number)).write_text(str(number))
    with open(place / "large", "wb") as file:
        file.truncate(100 << 20)
    first = data.declared(["data"], reprokit.directory, bool)
    large, many = first
    assert large["digest"].startswith("sampled-sha256:")
    assert (many["path"], many["files"], many["digest"][:7]) == ("data/many/*", data.MANY + 1, "sha256:")
    with open(place / "large", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    (place / "many" / "7").write_text("8")
    second = data.declared(["data"], reprokit.directory, bool)
    assert all(one["digest"] != other["digest"] for one, other in zip(first, second, strict=True))


def test_there_is_an_end_to_reading(reprokit: Reprokit) -> None:
    from reprokit.run import data

    (reprokit.directory / "data").write_text("x")
    (found,) = data.declared(["data"], reprokit.directory, lambda: True)
    assert (found["digest"], found["note"]) == ("", "not read: there was no time")


@pytest.mark.parametrize(
    "hostile", [None, 1, "x", [1], {"a": 1}, [{"path": 1}], {"a": {"b": []}}, [{"path": "\x1b[0m"}]]
)
@pytest.mark.parametrize(
    "key", ["packages", "imported", "code", "data", "git", "frameworks", "accelerator", "declared"]
)
def test_surroundings_that_make_no_sense_are_no_trouble(
    pair: tuple[Building, Building], compared: Callable[..., Comparison], key: str, hostile: object
) -> None:
    pair[1].environment[key] = hostile
    assert compared(pair).identical


def test_likely_causes_are_named_of_runs_that_differ_only(
    pair: tuple[Building, Building], compared: Callable[..., Comparison]
) -> None:
    from reprokit.verify.show.comparison import causes

    pair[1].environment["code"] = {"train.py": "sha256:1"}
    pair[1].environment["cpu"] = {"model": "6502"}
    assert list(causes(compared(pair))) == []
    next(line for line in pair[1].lines if line["k"] == "loss")["value"] = float32(9.0)
    for run in pair:
        run.path = run.path.with_name(f"{run.path.name}-2")
    named = list(causes(compared(pair)))
    assert [one.partition(":")[0] for one in named] == ["code.train.py", "cpu.model"]


def test_many_causes_of_a_kind_are_one_line_each(
    pair: tuple[Building, Building], compared: Callable[..., Comparison]
) -> None:
    from reprokit.verify.show.comparison import causes

    next(line for line in pair[1].lines if line["k"] == "loss")["value"] = float32(9.0)
    pair[1].environment["code"] = {f"module{number}.py": "sha256:1" for number in range(22)}
    for number in range(22):
        text = (
            f"Array at train.py:{number}: memory that processes share; what depends on who comes first may not repeat"
        )
        pair[1].run.uncovered.append(Uncovered(source="memory", text=text))
        pair[0].run.uncovered.append(Uncovered(source="clock", text=f"native code reads the clock (lib{number}.so)"))
    named = list(causes(compared(pair)))
    assert [one.partition(" ")[0] for one in named] == ["code.module0.py:", "native", "Array"]
    assert named[0].endswith("(and 21 more: code.module1.py, code.module10.py, code.module11.py and 18 more)")
    assert named[2].endswith("may not repeat (and 21 more)")


READERS = {
    "python": "open('data.bin', 'rb').read()",
    "numpy": "numpy.load('data.bin').tolist()",
    "descriptor": "os.close(os.open('data.bin', os.O_RDONLY))",
    "worker": "multiprocessing.get_context('fork').Pool(1).map(numpy.load, ['data.bin'])",
    "stdio": "ctypes.CDLL(None).fopen(b'data.bin', b'r')",
}


@pytest.mark.parametrize("reader", rest_slow(READERS))
def test_data_that_was_read_is_found_without_being_named(reprokit: Reprokit, reader: str) -> None:
    script(reprokit, "ctypes, multiprocessing, numpy, os", f"({READERS[reader]}) and 0")
    for run in ("a", "b"):
        with open(reprokit.directory / "data.bin", "wb") as file:
            numpy.save(file, numpy.arange(3) + (run == "b"))
        facts = record(reprokit, run)
        assert [one["path"] for one in facts["data"]] == ["data.bin"]
    assert "can change results: the data has other bytes" in leaves(reprokit)["data.data.bin"].detail


def test_a_database_that_is_only_read_is_data_and_one_that_is_written_is_none(reprokit: Reprokit) -> None:
    def store(name: str, number: int) -> None:
        connection = sqlite3.connect(reprokit.directory / name)
        connection.execute("CREATE TABLE IF NOT EXISTS numbers (number)")
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        connection.commit()
        connection.close()

    if not names._notes_mapped_writes(os.stat(reprokit.directory).st_dev):
        pytest.skip("temporary files are in memory here, where nobody knows which were changed")
    script(reprokit, "sqlite3", "sum(row[0] for row in sqlite3.connect('data.db').execute('SELECT * FROM numbers'))")
    with open(reprokit.directory / "train.py", "a") as file:
        file.write("with sqlite3.connect('trials.db') as trials: trials.execute('INSERT INTO numbers VALUES (1)')\n")
    store("trials.db", 1)
    for run, number in (("a", 1), ("b", 2)):
        store("data.db", number)
        facts = record(reprokit, run)
        assert [one["path"] for one in facts["data"]] == ["data.db"]
        outputs = rundir.RunDirectory(reprokit.directory / run).outputs()
        assert outputs is not None
        assert [one.path for one in outputs.files] == ["out.txt", "trials.db"]
    assert "can change results: the data has other bytes" in leaves(reprokit)["data.data.db"].detail
    store("data.db", 3)
    assert "changed: data.db: its contents differ" in reprokit.run("replay", "b", "-o", "c").stderr


def test_a_mapped_file_in_memory_is_an_output_whatever_its_times() -> None:
    """A map that was read first is written without a trace there."""
    assert not names._notes_mapped_writes(os.stat("/dev/shm").st_dev)


def test_an_output_that_the_command_names_is_no_cause(reprokit: Reprokit) -> None:
    text = "import random, sys\nwith open(sys.argv[1], 'w') as file: file.write(str(random.random()))\n"
    text += "with open(sys.argv[1]) as file: print(file.read())\n"
    for run in ("a", "b"):
        done = reprokit.run("record", "-o", run, "--", *python(text), "out.txt")
        assert done.returncode == 0, done.stderr
    assert not [name for name in leaves(reprokit) if name.startswith("files.")]
    (reprokit.directory / "out.txt").write_text("something else")
    assert "changed" not in reprokit.run("replay", "b", "-o", "c").stderr


def test_what_the_run_wrote_and_what_python_reads_is_no_data(reprokit: Reprokit) -> None:
    text = "open('made', 'w').write('x') and open('made').read() and open('/proc/self/stat').read() and 0"
    script(reprokit, "json, numpy, helper", text)
    (reprokit.directory / "helper.py").write_text("")
    assert record(reprokit, "a")["data"] == []


def test_files_of_one_directory_are_one_entry(reprokit: Reprokit) -> None:
    from reprokit.run import data

    (reprokit.directory / "images").mkdir()
    for number in range(data.MANY + 5):
        (reprokit.directory / "images" / f"{number}.png").write_text(str(number))
    script(reprokit, "os", "[len(open(one.path).read()) for one in os.scandir('images')] and 0")
    (entry,) = record(reprokit, "a")["data"]
    assert (entry["path"], entry["files"], entry["digest"][:7]) == ("images/*", data.MANY + 5, "sha256:")


def test_a_file_that_is_read_again_and_again_is_noted_once(reprokit: Reprokit) -> None:
    (reprokit.directory / "data.bin").write_text("x")
    script(reprokit, "os", "[os.close(os.open('data.bin', os.O_RDONLY)) for _ in range(1000)] and 0")
    record(reprokit, "a")
    lines = names.read_lines(reprokit.directory / "a")
    assert sum(line.startswith(bytes(reprokit.directory / "data.bin")) for line in lines) == 1


@pytest.mark.slow
def test_what_is_noted_is_bounded_and_then_has_no_digest(reprokit: Reprokit) -> None:
    from reprokit.run import data

    (reprokit.directory / "many").mkdir()
    script(reprokit, "os", f"[open(f'many/{{n}}', 'w').close() for n in range({data.MAX_NOTED + 50})] and 0")
    subprocess.run([sys.executable, "train.py"], cwd=reprokit.directory, check=True)
    script(reprokit, "os", f"[os.close(os.open(f'many/{{n}}', 0)) for n in range({data.MAX_NOTED + 50})] and 0")
    facts = record(reprokit, "a")
    lines = names.read_lines(reprokit.directory / "a")
    assert len(lines) == data.MAX_NOTED
    assert [(one["path"], one["digest"]) for one in facts["data"]] == [("many/*", "")]
    assert facts["unlisted"] > 0
