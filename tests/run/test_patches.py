"""record --patch: chosen before the start, applied, told in run.json, given again by replays, seen by verify."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.errors import ConflictingPatches, ReprokitError, UnknownPatch, UsageError
from reprokit.patches import CATALOGUE, Takes, find, matters, select
from reprokit.run.command import Command
from reprokit.run.run_patches import installed
from tests.run import patch_table
from tests.support import Reprokit, python, rest_slow

TRAININGS = Path(__file__).parent.parent / "trainings"
SHOW = "import os; print(*(os.environ.get(name) for name in ('MKL_CBWR', 'NCCL_ALGO', 'XLA_FLAGS')))"


def texts(*words: str, packages: dict[str, str] | None = None) -> list[str]:
    return [chosen.text for chosen in select(words, lambda: packages)]


def by_id(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {patch["id"]: patch for patch in run["patches"]}


def distributions(directory: Path, **versions: str) -> dict[str, str]:
    """Variables with which the command's Python has these packages, in front of its own."""
    for name, version in versions.items():
        (directory / f"{name}-{version}.dist-info").mkdir()
    return {"PYTHONPATH": str(directory)}


def test_ids_are_sorted_as_the_catalogue_has_them_and_each_counts_once() -> None:
    assert texts("threads=1,tf-data", "tf-data") == ["tf-data", "threads=1"]
    assert texts("mkl-cbwr") == ["mkl-cbwr=AUTO"]
    assert texts("imap-ordered,mkl-cbwr=AVX2,STRICT,nccl-algorithm")[0] == "mkl-cbwr=AVX2,STRICT"
    assert texts("torch-operator=aten::index_put_,torch-operator=aten::put_") == [
        "torch-operator=aten::index_put_",
        "torch-operator=aten::put_",
    ]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("tf-datta", UnknownPatch, "did you mean tf-data"),
        ("no such thing at all", UnknownPatch, "there are torch-deterministic, "),
        ("tf-data=1", UsageError, "takes no value"),
        ("threads", UsageError, "--patch threads=N"),
        ("threads=0", UsageError, "as in threads=1"),
        ("threads=1e3", UsageError, "as in threads=1"),
        ("mkl-cbwr=$(id)", UsageError, "mkl-cbwr=AVX2"),
        ("torch-operator=../x", UsageError, "torch-operator"),
        ("threads=1,threads=2", ConflictingPatches, "threads=1 and threads=2"),
        ("threads=2,tf-threads", ConflictingPatches, "choose one of the two"),
        ("torch-deterministic,torch-deterministic-fill", ConflictingPatches, "choose one"),
        ("none,tf-data", UsageError, "leave one of them out"),
    ],
)
def test_what_cannot_be_is_refused(words: str, error: type[ReprokitError], message: str) -> None:
    with pytest.raises(error) as raised:
        texts(words)
    assert message in str(raised.value)


def test_auto_takes_what_fits_the_packages() -> None:
    assert texts("none", packages={"torch": "2.13.0"}) == []
    assert texts("auto", packages={"numpy": "2.0"}) == []
    old = {"tensorflow": "1.14.0", "tensorflow-determinism": "0.3.0"}
    assert "tf1-determinism" in texts("auto", packages=old)
    assert "tf1-determinism" not in texts("auto", packages={**old, "tensorflow-determinism": "0.4.0"})
    new = texts("auto", packages={"tensorflow-cpu": "2.21.0", "xgboost": "3.2.0"})
    assert "cublas-workspace" in new
    assert {"tf1-determinism", "xgboost-linear", "tf-deterministic"}.isdisjoint(new)
    assert "threads=1" in texts("auto,threads=1", packages={})
    everything = texts("auto", packages=None)  # nobody knows: each is applied if its framework comes
    assert set(everything) == {patch.id for patch in CATALOGUE if patch.automatic}


@pytest.mark.parametrize(("name", "on_processor"), [("torch-cudnn", False), ("torch-deterministic", True)])
def test_patches_of_gpu_libraries_matter_on_a_gpu_only(name: str, on_processor: bool) -> None:
    assert matters(find(name), {"torch"}, has_gpu=True)
    assert matters(find(name), {"torch"}, has_gpu=False) is on_processor
    assert not matters(find(name), {"tensorflow"}, has_gpu=True)


def test_auto_is_without_warnings_and_everything_says_what_it_costs() -> None:
    for patch in CATALOGUE:
        assert patch.title, patch.id
        assert patch.agent or patch.variables or patch.flags, patch.id
        assert not (patch.automatic and (patch.warning or not patch.cost)), patch.id
        assert not patch.measured or re.search("[0-9]", patch.cost), patch.id
        assert (patch.takes is Takes.NOTHING) == (not patch.pattern), patch.id
        assert not patch.pattern or (patch.example and re.compile(patch.pattern)), patch.id


def test_conflicts_are_known_and_patches_that_set_the_same_agree_or_conflict() -> None:
    for patch in CATALOGUE:
        for other in map(find, patch.conflicts):
            assert patch.id in other.conflicts, (patch.id, other.id)
        for other in CATALOGUE:
            shared = patch.variables.keys() & other.variables.keys() if other is not patch else set()
            assert not shared or other.id in patch.conflicts, (patch.id, other.id)


def test_the_page_holds_the_catalogue() -> None:
    page = patch_table.PAGE.read_text()
    assert patch_table.page_with_table(page) == page, "python -m tests.run.patch_table writes it again"


def test_variables_are_set_told_and_given_again(reprokit: Reprokit) -> None:
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    patches = "mkl-cbwr=AVX2,nccl-algorithm,xla-deterministic"
    done = reprokit.run("record", "-o", "one", "--patch", patches, "--", *python(SHOW), environment=flags)
    expected = "AVX2 Ring --xla_cpu_enable_fast_math=false --xla_gpu_deterministic_ops=true\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    facts = by_id(reprokit.facts("one"))
    assert {name: (patch["state"], patch["value"]) for name, patch in facts.items()} == {
        "mkl-cbwr": ("applied", "AVX2"),
        "nccl-algorithm": ("applied", ""),
        "xla-deterministic": ("applied", ""),
    }
    assert facts["nccl-algorithm"]["variables"] == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert "MKL_CBWR" not in reprokit.facts("one")["variables"]  # the user's own stand there
    again = reprokit.run("replay", "one", "-o", "two", environment={"MKL_CBWR": "SSE2"})
    assert again.stdout == expected
    assert reprokit.facts("two")["patches"] == reprokit.facts("one")["patches"]


def test_what_the_user_has_set_stays_and_the_patch_is_refused_whole(reprokit: Reprokit) -> None:
    own = {"NCCL_PROTO": "LL", "MKL_CBWR": "AUTO", "XLA_FLAGS": "--xla_gpu_deterministic_ops=false --a=b"}
    patches = "mkl-cbwr,nccl-algorithm,xla-deterministic"
    done = reprokit.run("record", "-o", "one", "--patch", patches, "--", *python(SHOW), environment=own)
    assert done.stdout == f"AUTO None {own['XLA_FLAGS']}\n"
    facts = by_id(reprokit.facts("one"))
    assert [facts[name]["state"] for name in ("mkl-cbwr", "nccl-algorithm", "xla-deterministic")] == [
        "applied",
        "refused",
        "refused",
    ]
    assert "NCCL_PROTO=LL" in facts["nccl-algorithm"]["why"]
    before = done.stderr.split("run: one")[0]
    assert "patch nccl-algorithm is refused: the environment has NCCL_PROTO=LL" in before
    assert (
        "patch xla-deterministic is refused: the environment has XLA_FLAGS=--xla_gpu_deterministic_ops=false" in before
    )


def test_a_patch_for_another_version_is_said_before_the_start(reprokit: Reprokit) -> None:
    environment = distributions(reprokit.directory, tensorflow="1.15.5")
    patches = "tf-deterministic,tf1-determinism,tf-data,xla-deterministic"
    done = reprokit.run("record", "-o", "one", "--patch", patches, "--", *python("pass"), environment=environment)
    assert done.returncode == 0
    assert "tf-deterministic is not applied: it is for tensorflow >=2.8, the command's Python has 1.15.5" in done.stderr
    assert "tf1-determinism is not applied: the command's Python has no tensorflow-determinism" in done.stderr
    assert "tensorflow-determinism==0.3.0" in done.stderr
    assert "xla-deterministic is not applied: it cannot be used with tensorflow <2.5" in done.stderr
    plan = json.loads((reprokit.directory / "one" / "plan.json").read_text())
    assert [patch["id"] for patch in plan["patches"]] == ["tf-data"]
    assert by_id(reprokit.facts("one"))["tf-data"]["why"] == "no process imported tensorflow"


def test_warnings_are_said_before_the_start(reprokit: Reprokit) -> None:
    script = python("import sys; print('training starts', file=sys.stderr)")
    done = reprokit.run("record", "-o", "one", "--patch", "xgboost-linear", "--", *script)
    before, _, _ = done.stderr.partition("training starts")
    assert "patch xgboost-linear: changes numbers" in before
    assert by_id(reprokit.facts("one"))["xgboost-linear"]["warnings"] == [find("xgboost-linear").warning]


@pytest.mark.parametrize(
    ("words", "slug"),
    [("nothing", "unknown-patch"), ("threads=1,tf-threads", "conflicting-patches"), ("tf-data=2", "usage")],
)
def test_a_refused_option_leaves_no_run(reprokit: Reprokit, words: str, slug: str) -> None:
    done = reprokit.run("record", "-o", "one", "--patch", words, "--", *python("print('ran')"))
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith(f"reprokit: {slug}: ")
    assert not (reprokit.directory / "one").exists()


@pytest.mark.slow
def test_the_interpreter_is_found_behind_scripts_and_env(reprokit: Reprokit) -> None:
    environment = distributions(reprokit.directory, tensorflow="1.15.5")
    reprokit.script("train", f"#!{sys.executable}\nprint('trained')\n")
    done = reprokit.run("record", "--patch", "tf-deterministic", "--", "./train", environment=environment)
    assert "it is for tensorflow >=2.8" in done.stderr
    done = reprokit.run("record", "--patch", "tf-deterministic", "--", "sh", "-c", "./train", environment=environment)
    assert "it is for tensorflow" not in done.stderr  # nobody knows before it runs
    assert by_id(reprokit.facts())["tf-deterministic"]["why"] == "no process imported tensorflow"


@pytest.mark.parametrize("includes", [True, False])
def test_the_packages_of_a_virtual_environment_and_of_what_it_was_made_from(tmp_path: Path, includes: bool) -> None:
    for prefix, packages in (("base", ("torch-2.13.0", "jax-0.10")), ("venv", ("torch-1.9.1+cpu",))):
        sites = tmp_path / prefix / "lib" / "python3.12" / "site-packages"
        sites.mkdir(parents=True)
        (tmp_path / prefix / "bin").mkdir()
        for name in packages:
            (sites / f"{name}.dist-info").mkdir()
    (tmp_path / "base" / "bin" / "python3.12").write_text("")
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "base" / "bin" / "python3.12")
    settings = f"version = 3.12.1\ninclude-system-site-packages = {str(includes).lower()}\n"
    (tmp_path / "venv" / "pyvenv.cfg").write_text(settings)
    command = Command(("python", "train.py"), "venv/bin/python")
    expected = {"torch": "1.9.1+cpu", **({"jax": "0.10"} if includes else {})}
    assert installed(command, {}, tmp_path) == expected
    assert installed(Command(("python",), "base/bin/python3.12"), {}, tmp_path) == {"torch": "2.13.0", "jax": "0.10"}
    assert installed(Command(("train",), "no/such/script"), {}, tmp_path) is None


POOL = """
import time
from multiprocessing.pool import ThreadPool
with ThreadPool(2) as pool:
    print(*pool.imap_unordered(lambda seconds: (time.sleep(seconds), seconds)[1], [0.2, 0]))
open("out.txt", "w").write("same")
"""


def test_verify_and_show_tell_of_patches(reprokit: Reprokit) -> None:
    bare = reprokit.run("record", "-o", "bare", "--seed", "1", "--", *python(POOL))
    done = reprokit.run("record", "-o", "patched", "--seed", "1", "--patch", "imap-ordered", "--", *python(POOL))
    assert (bare.stdout, done.stdout) == ("0 0.2\n", "0.2 0\n")
    assert by_id(reprokit.facts("patched"))["imap-ordered"]["processes"] == 1
    shown = reprokit.run("show", "patched").stdout
    assert re.search(r"patches +imap-ordered applied in 1 process", shown)
    compared = json.loads(reprokit.run("verify", "bare", "patched", "--json").stdout)
    text = json.dumps(compared)
    assert compared["first_difference"]["name"] == "stdout"  # and nothing else of what the runs came to
    assert compared["first_difference"]["left"] == "'0 0.2'"
    assert "patches.imap-ordered" in text
    assert "made to repeat" in text
    replayed = reprokit.run("replay", "patched", "-o", "replayed")
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr
    assert "patches.imap-ordered" not in reprokit.run("verify", "patched", "replayed").stdout


def test_a_replay_refuses_a_patch_that_does_not_exist(reprokit: Reprokit) -> None:
    from reprokit.run_files.rundir import write_json

    reprokit.run("record", "-o", "one", "--patch", "imap-ordered", "--", *python("pass"))
    facts = reprokit.facts("one")
    del facts["check"]
    facts["patches"][0]["id"] = "LD_PRELOAD"
    write_json(reprokit.directory / "one" / "run.json", facts)
    done = reprokit.run("replay", "one", "-o", "two")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("reprokit: unknown-patch: ")


@pytest.mark.extended
@pytest.mark.xgboost
def test_gblinear_with_two_threads_repeats_patched_only(reprokit: Reprokit) -> None:
    command = ("--", sys.executable, str(TRAININGS / "xgboost_repeated.py"))
    bare = reprokit.run("record", "-o", "bare", *command, "200")
    patched = reprokit.run("record", "-o", "one", "--patch", "xgboost-linear", *command, "8")
    assert bare.stdout == "2\n", bare.stderr
    assert patched.stdout == "1\n", patched.stderr
    reprokit.run("replay", "one", "-o", "two")
    assert reprokit.run("verify", "one", "two").returncode == 0


@pytest.fixture(scope="module")
def data_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, int]]:
    """Whether the map and bincount come to one result or to two in a process, by its patches."""
    reprokit = Reprokit(tmp_path_factory.mktemp("data"))

    def counts(patches: str) -> tuple[int, int]:
        command = ("--", sys.executable, str(TRAININGS / "tensorflow_mapped.py"))
        done = reprokit.run("record", "-o", patches, "--patch", patches, *command)
        drawn, counted = done.stdout.split()
        if patches == "tf-data":
            reprokit.run("replay", patches, "-o", "again")
            assert reprokit.run("verify", patches, "again").returncode == 0
        return int(drawn), int(counted)

    return counts


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("patches", rest_slow(["tf-data"], extended=["none", "tf-threads"]))
def test_a_random_parallel_map_and_a_float_bincount(data_runs: Callable[[str], tuple[int, int]], patches: str) -> None:
    drawn, counted = data_runs(patches)
    if patches != "tf-threads":  # which may help, or not
        assert (drawn == 1) == (patches == "tf-data")
    assert (counted == 1) == (patches == "tf-threads")


@pytest.mark.slow
def test_a_seed_reaches_generators_that_are_given_none(reprokit: Reprokit) -> None:
    drawn = []
    for value in ("1", "1", "2"):
        done = reprokit.run(
            "record", "--patch", f"seed={value}", "--", sys.executable, str(TRAININGS / "numpy_generators.py")
        )
        assert done.returncode == 0, done.stderr
        drawn.append([float(word) for word in done.stdout.split()])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == len(drawn[0]), "two that are one"
    assert not set(drawn[0][:-1]) & set(drawn[2])
    assert drawn[0][-1] == drawn[2][-1], "the script's own seed counts"
