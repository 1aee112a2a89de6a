"""A replay on another machine: what can be made as it was is, and what cannot is said.

The other machine is this one with fewer processors to use, or with instruction sets taken out of the facts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reprokit.agent.surroundings.compute_settings import VARIABLES
from reprokit.run import compute_pins
from reprokit.run.compute_pins import ComputeFacts, Processor
from reprokit.run.host import cpu_facts
from reprokit.run_files import rundir
from reprokit.run_files.variables import is_kept
from tests.support import COMMAND, Done, Reprokit, python, rewrite_environment, training_text

ONE = {min(os.sched_getaffinity(0))}
several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it takes two processors to use one fewer")
x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has capabilities that can be lowered")

TRAINING = training_text("pytorch_threads_used.py")


def on_one_processor(reprokit: Reprokit, *arguments: str) -> Done:
    """Run reprokit where it may use one processor."""
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"
    command = [*python(code), str(*ONE), COMMAND, *arguments]
    return subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True, check=False)


def computed(run: Path, library: str) -> dict[str, Any]:
    """What a run's first process told of a library."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = next(line["facts"] for line in lines if line.get("library") == library)
    return found


def pinned(run: dict[str, Any]) -> dict[str, str]:
    """The variables that a replay says it set."""
    words = [change.split()[1].rstrip(",") for change in run["changed"] if change.startswith("pinned: ")]
    return dict(word.split("=", 1) for word in words if "=" in word)


def edit_environment(reprokit: Reprokit, run: str, *, without: frozenset[str] = frozenset(), **cpu: Any) -> None:
    """The machine of a recording, as another one would have been written down."""
    path = reprokit.directory / run / rundir.ENVIRONMENT
    content = json.loads(path.read_text())
    content["cpu"] = {**content["cpu"], **cpu}
    content["cpu"]["flags"] = sorted(set(content["cpu"]["flags"]) - without)
    rewrite_environment(path.parent, content)


@pytest.mark.slow
@several
def test_a_training_replays_with_fewer_processors(reprokit: Reprokit) -> None:
    count = len(os.sched_getaffinity(0))
    training = python(TRAINING)
    assert reprokit.run("record", "-o", "one", "--", *training).returncode == 0
    bare = subprocess.run(
        ["taskset", "-c", str(*ONE), *training], cwd=reprokit.directory, capture_output=True, text=True
    )
    assert bare.stdout.startswith("1 "), "without reprokit the count follows the processors"
    done = on_one_processor(reprokit, "replay", "one", "-o", "other")
    assert done.stdout.startswith(f"{count} {count} ")
    assert f"pinned: OMP_NUM_THREADS={count}, as recorded (this machine has 1 usable processor)" in done.stderr
    for library in ("torch", "openblas", "openmp"):
        assert computed(reprokit.directory / "one", library) == computed(reprokit.directory / "other", library)
    assert "in this replay" not in done.stderr
    verdict = reprokit.run("verify", "one", "other")
    assert verdict.returncode == 0, verdict.stdout
    assert "weights at the end of model#0" in verdict.stdout


@several
def test_a_training_replays_with_more_processors(reprokit: Reprokit) -> None:
    look = python("import os; print(len(os.sched_getaffinity(0)))")
    assert on_one_processor(reprokit, "record", "-o", "one", "--", *look).stdout == "1\n"
    done = reprokit.run("replay", "one")
    assert done.stdout == "1\n"
    assert f"pinned: 1 of the {len(os.sched_getaffinity(0))} usable processors, as recorded" in done.stderr
    assert pinned(reprokit.facts()) == {"OMP_NUM_THREADS": "1"}, "nobody told more of it"


def test_nothing_is_pinned_on_the_same_machine(reprokit: Reprokit) -> None:
    show = python("import ctypes, os; print(sorted(os.environ), len(os.sched_getaffinity(0)))")
    recorded = reprokit.run("record", "-o", "one", "--", *show)
    done = reprokit.run("replay", "one")
    assert done.stdout == recorded.stdout
    assert reprokit.facts()["changed"] == []


def test_what_the_command_sets_itself_is_left_to_it(reprokit: Reprokit) -> None:
    code = "import os; os.environ['OMP_NUM_THREADS'] = '3'; import numpy"
    reprokit.run("record", "-o", "one", "--", *python(code), environment={"OPENBLAS_NUM_THREADS": "1"})
    edit_environment(reprokit, "one", usable=64, count=64)
    assert reprokit.run("replay", "one").returncode == 0
    assert pinned(reprokit.facts()) == {}
    assert reprokit.facts()["variables"]["OPENBLAS_NUM_THREADS"] == "1"


@pytest.mark.extended
@x86
def test_a_training_replays_with_the_code_of_a_lesser_processor(reprokit: Reprokit) -> None:
    """Recorded as a processor without AVX2 would: by its variables, which are then taken out of the record."""
    lowered = {
        "ATEN_CPU_CAPABILITY": "default",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ONEDNN_MAX_CPU_ISA": "AVX",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA_Usable,-AVX2,-AVX2_Usable",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_features()),
        "MKL_ENABLE_INSTRUCTIONS": "AVX",
    }
    assert reprokit.run("record", "-o", "one", "--", *python(TRAINING), environment=lowered).returncode == 0
    lacking = frozenset(flag for flag in cpu_facts()["flags"] if flag in ("avx2", "fma") or flag.startswith("avx5"))
    forget_variables(reprokit, "one", *lowered)
    edit_environment(reprokit, "one", without=lacking)
    done = reprokit.run("replay", "one", "-o", "other")
    assert done.stdout.endswith(" DEFAULT\n")
    found = pinned(reprokit.facts("other"))
    assert found.pop("NPY_DISABLE_CPU_FEATURES").split()[0] in _numpy_features()
    assert found == {name: lowered[name] for name in found}
    assert {"ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE", "ONEDNN_MAX_CPU_ISA", "GLIBC_TUNABLES"} <= found.keys()
    for library in ("torch", "openblas", "numpy"):
        assert computed(reprokit.directory / "one", library) == computed(reprokit.directory / "other", library)
    assert reprokit.run("verify", "one", "other").returncode == 0


def _numpy_features() -> list[str]:
    import numpy

    module = numpy._core._multiarray_umath  # type: ignore[attr-defined]
    return [name for name in module.__cpu_dispatch__ if module.__cpu_features__[name]]


def forget_variables(reprokit: Reprokit, run: str, *names: str) -> None:
    """Take variables out of a recording, as if nobody had set them: the processor was like that."""
    directory = reprokit.directory / run
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("library") == "process":
            line["facts"]["variables"] = []
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text)
    content = json.loads((directory / "run.json").read_text())
    content["variables"] = {name: value for name, value in content["variables"].items() if name not in names}
    content["metrics"] = msgspec.to_builtins(rundir.seal_file(directory / "metrics.jsonl"))
    rundir.write_json(directory / "run.json", content)


@x86
def test_a_greater_processor_cannot_be_imitated(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "one", "--", "true")
    flags = [
        *cpu_facts()["flags"],
        "avx",
        "avx2",
        "fma",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "amx_tile",
        "avx1024",
    ]
    edit_environment(reprokit, "one", flags=flags, model="One of tomorrow")
    done = reprokit.run("replay", "one")
    assert "which this processor lacks" in done.stderr or "recorded with AVX512, this processor has" in done.stderr
    assert pinned(reprokit.facts()) == {}


@pytest.mark.slow
def test_facts_from_elsewhere_are_not_trusted(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "one", "--", "true")
    path = reprokit.directory / "one" / "metrics.jsonl"
    for bad, expected in (
        ("-7", {}),
        ("99999999", {}),
        ('"; evil"', {}),
        ("null", {}),
        ("true", {}),
        ("[1]", {"OMP_NUM_THREADS": "64"}),  # no such line can be: it counts as if nobody had told
    ):
        line = f'{{"k":"compute","p":"","n":0,"t":0,"name":"x","library":"openmp","facts":{{"threads":{bad}}}}}'
        path.write_text(line + '\n{"k":"compute" not JSON\n')
        edit_environment(reprokit, "one", usable=64, count=64)
        assert reprokit.run("replay", "one").returncode == 0
        assert pinned(reprokit.facts()) == expected, bad
    bad_facts: list[dict[str, Any]] = [{"usable": -1}, {"count": "2"}, {"usable": True}]
    for bad_cpu in bad_facts:
        edit_environment(reprokit, "one", **{"usable": 64, "count": 64, **bad_cpu})
        assert reprokit.run("replay", "one").returncode == 0
        assert pinned(reprokit.facts()) == {}


def test_every_pin_is_on_the_page_and_told_by_the_agent() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "replay.md").read_text()
    table = page.partition("## Another machine")[2].partition("## What is")[0]
    wanted = set(re.findall(r"[A-Z][A-Z_]+_[A-Z_]+", table))
    assert wanted | {"MKL_CBWR"} == set(VARIABLES)
    assert all(is_kept(name, "1") for name in wanted), "or the replay would not be given it"


OLD = Processor("Intel(R) Xeon(R) CPU E5", frozenset({"sse4_1", "sse4_2", "avx"}))
HASWELL = Processor("Intel(R) Xeon(R) v3", OLD.flags | {"avx2", "fma", "f16c"})
SKYLAKE = Processor("Intel(R) Xeon(R) Gold", HASWELL.flags | {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
ZEN = Processor("AMD EPYC", HASWELL.flags)


def told(**libraries: dict[str, Any]) -> ComputeFacts:
    """What a process would have told of its libraries."""
    from reprokit.run.compute_pins import _ComputeLine

    return ComputeFacts(
        [_ComputeLine(p="0", name=name, library=name, facts=facts) for name, facts in libraries.items()]
    )


def test_libraries_are_told_to_take_the_lesser_code() -> None:
    numpy = {"used": ["AVX2"], "unused": ["AVX512_SKX", "AVX512_SPR", "NEW_ONE"]}
    libraries = told(
        torch={"capability": "AVX2"}, numpy=numpy, openblas={"core": "Haswell"}, mkl={"threads": 4}, tensorflow={}
    )
    assert dict(compute_pins.variables(HASWELL, SKYLAKE, libraries)) == {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "AVX512_SKX",
        "OPENBLAS_CORETYPE": "Haswell",
    }
    assert list(compute_pins.not_possible(HASWELL, SKYLAKE, libraries)) == []


def test_no_library_is_told_to_take_what_would_kill_it() -> None:
    libraries = told(torch={"capability": "AVX512"}, openblas={"core": "SkylakeX"}, mkl={"threads": 4})
    assert dict(compute_pins.variables(SKYLAKE, ZEN, libraries)) == {}
    assert list(compute_pins.not_possible(SKYLAKE, ZEN, libraries)) == [
        "recorded with AVX512, this processor has AVX2: results will differ",
        "OpenBLAS computed by its code for SkylakeX, which this processor cannot be told to take",
        "MKL chooses its code by the processor's maker too: Intel recorded, AMD now: results can differ",
    ]


def test_the_c_library_is_told_what_its_mathematics_did_without() -> None:
    variables = dict(compute_pins.variables(OLD, HASWELL, told()))
    assert variables["GLIBC_TUNABLES"].split(",")[:2] == ["glibc.cpu.hwcaps=-FMA", "-FMA_Usable"]
    assert HASWELL.chooses_like(HASWELL)
    assert not HASWELL.chooses_like(ZEN)
    assert HASWELL.chooses_like(Processor("", frozenset())), "nothing is known of it"
