"""Studies whose tasks are run by Dask and by Slurm, on real workers of this machine, of which some are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reprokit.core.errors import CannotBegin, EngineUnusable
from reprokit.study import description, engines, store, tasks
from reprokit.study.description import Engine
from reprokit.study.engines import slurm as slurm_engine
from reprokit.study.results import PairResult
from tests.slurm import Slurm
from tests.study.studies import OUT, results_of, run, words, written
from tests.support import LIMIT, training_text

TRAINING = training_text("study_workers.py")
TWO = """
runs = 2
[engine]
{engine}
[[setup]]
name = "dies"
variables = {{KIND = "dies", DEATHS = "{deaths}"}}
[[setup]]
name = "recorded"
entropy = "replayed"
"""


def training(mark: str, number: str) -> str:
    """A training that ends a process above it, whose command line has this mark, as often as DEATHS says."""
    return TRAINING.replace('b"multiprocessing", signal.SIGKILL', f"{mark}, {number}")


def pairs(directory: Path) -> dict[str, PairResult]:
    return {one.setup: one for one in store.read_pairs(directory)}


def check_recorded(out: Path) -> None:
    """The pair whose worker did not die is as on this machine, with nothing of the shim above its runs."""
    runs = results_of(out)
    for part in ("first", "second"):
        assert runs["recorded", part].outcome == "finished"
        assert (out / runs["recorded", part].evaluations[0].predictions).is_file()
    assert pairs(out)["recorded"].identical is True
    assert runs["recorded", "first"].profile > 0
    assert (out.parent / ".cache" / "plain").read_text() == "True False None\n" * 2
    check_clean(out)


def check_clean(out: Path) -> None:
    assert not list((out / tasks.TASKS).iterdir())
    assert not list((out / store.RUNS).iterdir())


def check_nothing_is_lost(directory: Path, said: str, deaths: int) -> None:
    """The runs whose worker died were made again by another one."""
    out = directory / OUT
    runs = results_of(out)
    assert "4 runs are made; " in said
    assert {run.outcome for run in runs.values()} == {"finished"}
    assert pairs(out)["dies"].words
    assert (directory / ".cache" / "dies").read_text().count("\n") == 2 + deaths
    check_recorded(out)


def check_is_lost(directory: Path, said: str) -> None:
    """A pair whose workers always die has lost runs, and the study goes on."""
    out = directory / OUT
    runs = results_of(out)
    assert "4 runs are made, 2 of them failed" in said
    assert {run.outcome for (setup, _), run in runs.items() if setup == "dies"} == {"lost"}
    assert pairs(out)["dies"].identical is None
    check_recorded(out)


# Settings that cannot work


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ('kind = "dask"\noptions = {GPU = 1}', "need the address of a scheduler"),
        ('kind = "dask"\naddress = "tcp://x:1"\noptions = {GPU = "one"}', "their values are numbers"),
        ('kind = "slurm"\naddress = "tcp://x"', "is left out"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, engine: str, said: str) -> None:
    study = description.read(written(tmp_path, TWO.format(engine=engine, deaths=0))).study
    with pytest.raises(EngineUnusable, match=said):
        engines.check(study.engine)


def test_an_engine_is_chosen_by_an_option(tmp_path: Path) -> None:
    written(tmp_path, 'runs = 2\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n')
    said = run(tmp_path, "--engine", "kubernetes", status=2)
    assert "'kubernetes' is not one of 'local', 'dask', 'slurm'" in said
    assert description.read(tmp_path / "study.toml", engine="dask", parallel=3).study.engine == Engine(
        kind="dask", parallel=3
    )


# Dask


def test_a_dask_scheduler_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reprokit.study.engines import dask

    monkeypatch.setattr(dask, "PATIENCE", 1)
    with pytest.raises(EngineUnusable, match=r"cannot be reached: .*tcp://127\.0\.0\.1:1") as caught:
        dask.Dask(Engine(kind="dask", address="tcp://127.0.0.1:1"), tmp_path)
    assert "\n" not in str(caught.value)


WITHOUT_REPROKIT = """
import asyncio, sys
sys.modules["reprokit"] = None
from distributed import Scheduler, Worker

async def main():
    async with Scheduler(port=0, host="127.0.0.1", dashboard_address=None) as scheduler:
        async with Worker(scheduler.address):
            print(scheduler.address, flush=True)
            await scheduler.finished()

asyncio.run(main())
"""


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with a worker that lacks reprokit."""
    command = [sys.executable, "-c", WITHOUT_REPROKIT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_a_worker_that_lacks_reprokit_is_one_line(scheduler: str) -> None:
    from reprokit.study.engines import dask

    with pytest.raises(CannotBegin, match=r"worker tcp://\S+ cannot use reprokit: .*; install reprokit \d") as caught:
        dask.Dask(Engine(kind="dask", address=scheduler), Path())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["multiprocessing", pytest.param("reprokit.study.tasks", marks=pytest.mark.extended)])
def test_dask_makes_the_pair_of_a_worker_or_a_task_that_dies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT", "0s")  # as on a busy machine
    text = TWO.format(engine='kind = "dask"', deaths=1)
    written(tmp_path, text, training(f"b'{mark}'", "signal.SIGKILL"))
    check_nothing_is_lost(tmp_path, run(tmp_path), deaths=1)
    runs = results_of(tmp_path / OUT)
    assert runs["recorded", "first"].worker.startswith("tcp://127.0.0.1:")
    assert runs["recorded", "first"].worker == runs["recorded", "second"].worker
    assert runs["dies", "first"].notes == ["an earlier attempt at this run was interrupted; nothing of it was used"]
    assert {one.together for one in runs.values()} == {1}


@pytest.mark.extended
def test_a_pair_that_kills_each_dask_worker_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "1")
    text = TWO.format(engine='kind = "dask"', deaths=100)
    written(tmp_path, text, training("b'multiprocessing'", "signal.SIGKILL"))
    check_is_lost(tmp_path, run(tmp_path, status=1))


# Slurm


def test_slurm_has_the_parameters_that_submitit_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))  # there may be a Slurm
    with pytest.raises(EngineUnusable, match="there is no sbatch here"):
        slurm_engine.check(Engine(kind="slurm"))
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\ncp \"$1\" submitted\necho 'Submitted batch job 7'\n")
    sbatch.chmod(0o755)
    (tmp_path / "srun").symlink_to(sbatch)
    monkeypatch.setenv("PATH", f"{tmp_path}:{usual}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EngineUnusable,
        match=r"submitit refuses engine.options: Unavailable .*partitoin.*: - account ",
    ):
        slurm_engine.check(Engine(kind="slurm", options={"partitoin": "x"}))
    settings = Engine(kind="slurm", options={"partition": "gpu", "time": 30, "gres": "gpu:1", "cpus_per_task": 4})
    slurm_engine.check(settings)
    slurm_engine.Slurm(settings, tmp_path).submit("name")
    script = (tmp_path / "submitted").read_text()
    for line in ("partition=gpu", "time=30", "gres=gpu:1", "cpus-per-task=4"):
        assert f"#SBATCH --{line}\n" in script


@pytest.mark.slow
def test_a_job_that_is_preempted_is_queued_again_and_loses_nothing(tmp_path: Path) -> None:
    engine = 'kind = "slurm"\naddress = "local"\nparallel = 2'
    # submitit queues a job once more that gets this before its time is over.
    text = TWO.format(engine=engine, deaths=1)
    written(tmp_path, text, training("b'submitit.core._submit'", "signal.SIGUSR2"))
    check_nothing_is_lost(tmp_path, run(tmp_path), deaths=1)
    runs = results_of(tmp_path / OUT)
    assert runs["recorded", "first"].worker.startswith("job ")
    assert {one.together for one in runs.values()} == {2}


@pytest.fixture
def real_slurm(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process and what it starts use the Slurm of this session, which keeps no accounts."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])


@pytest.mark.slow
@pytest.mark.usefixtures("real_slurm")
def test_a_job_that_dies_is_submitted_again_and_a_slurm_without_accounting_says_nothing(tmp_path: Path) -> None:
    text = TWO.format(engine='kind = "slurm"\nparallel = 2', deaths=1)
    written(tmp_path, text, training("b'submitit.core._submit'", "signal.SIGKILL"))
    said = run(tmp_path)
    check_nothing_is_lost(tmp_path, said, deaths=1)
    assert all(line.startswith("reprokit: ") for line in said.splitlines()), said


@pytest.mark.extended
@pytest.mark.usefixtures("real_slurm")
def test_a_pair_that_kills_each_job_is_lost(tmp_path: Path) -> None:
    text = TWO.format(engine='kind = "slurm"\nparallel = 2', deaths=100)
    written(tmp_path, text, training("b'submitit.core._submit'", "signal.SIGKILL"))
    said = run(tmp_path, status=1)
    check_is_lost(tmp_path, said)
    assert (tmp_path / ".cache" / "dies").read_text().count("\n") == 2 * tasks.TRIES
    assert all(line.startswith("reprokit: ") for line in said.splitlines()), said


# Killed workers and studies

WAITS = """
import os, pathlib, time
here = pathlib.Path(".cache")  # in which nothing is a result
here.mkdir(exist_ok=True)
(here / f"began-{os.getpid()}").touch()
while not (here / "go").exists():
    time.sleep(0.05)
"""


@contextmanager
def dask_cluster(directory: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process of its own, as `dask` starts them."""
    with open(directory / "dask.log", "w") as log:
        file, started = directory / "scheduler.json", list[subprocess.Popen[bytes]]()

        def start(module: str, *options: str) -> None:
            command = [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", *options]
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=environment))

        try:
            start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
            for _ in range(2):
                start("dask_worker", "--scheduler-file", str(file), "--no-nanny", "--nthreads", "1")
            await_that(file.exists)
            yield str(json.loads(file.read_text())["address"]), started[1:]
        finally:
            for process in started:
                process.kill()
                process.wait()


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(directory: Path) -> subprocess.Popen[bytes]:
    with open(directory / "log", "w") as file:
        return subprocess.Popen(words(directory), cwd=directory, stderr=file, start_new_session=True)


def begun(directory: Path) -> set[int]:
    """The processes of all runs that have begun."""
    return {int(path.name.removeprefix("began-")) for path in (directory / ".cache").glob("began-*")}


def killed_at_a_run(directory: Path, study: subprocess.Popen[bytes]) -> int:
    """Kill a study that has gathered a pair and has another under way; return the process of a run of that."""
    go = directory / ".cache" / "go"
    go.touch()
    await_that(lambda: bool(store.read_pairs(directory / OUT)))
    go.unlink()
    before = begun(directory)
    await_that(lambda: begun(directory) > before)
    study.kill()
    study.wait()
    assert len(store.read_pairs(directory / OUT)) < 4
    (run, *_) = begun(directory) - before
    return run


FOUR = "".join(f'[[setup]]\nname = "{name}"\n' for name in ("a", "b", "c", "d"))


@pytest.mark.slow
def test_a_killed_dask_worker_and_a_killed_study_lose_nothing(tmp_path: Path) -> None:
    """One of two workers is killed while both make a pair, then the study while the other one does."""
    with dask_cluster(tmp_path) as (address, workers):
        engine = f'kind = "dask"\naddress = "{address}"\nparallel = 2'
        written(tmp_path, f"runs = 2\n[engine]\n{engine}\n{FOUR}", WAITS)
        study = started(tmp_path)
        await_that(lambda: len(begun(tmp_path)) == 2)
        workers[0].kill()
        run_under_way = killed_at_a_run(tmp_path, study)
        time.sleep(1.0)
        os.kill(run_under_way, 0)  # the worker goes on with it
        (tmp_path / ".cache" / "go").touch()
        assert "8 runs are made; " in run(tmp_path)
    runs = results_of(tmp_path / OUT)
    assert {one.outcome for one in runs.values()} == {"finished"}
    assert len(begun(tmp_path)) == 8 + 1  # that of the worker was made again, and nothing else
    assert sum(bool(one.notes) for one in runs.values()) == 1
    check_clean(tmp_path / OUT)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["dask", "slurm"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_elsewhere_goes_on(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    engine = f'kind = "{kind}"' + ('\naddress = "local"' if kind == "slurm" else "")
    text = f'runs = 2\n[engine]\n{engine}\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n'
    written(tmp_path, text, WAITS)
    is_terminal, study = number == signal.SIGINT, started(tmp_path)
    await_that(lambda: bool(begun(tmp_path)))
    (os.killpg if is_terminal else os.kill)(study.pid, number)
    assert study.wait(timeout=LIMIT) == (130 if is_terminal else -9)
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert is_terminal == ("interrupted; finished runs are kept, resume with: " in log)
    (tmp_path / ".cache" / "go").touch()
    assert "4 runs are made; " in run(tmp_path)
    runs = results_of(tmp_path / OUT)
    assert {one.outcome for one in runs.values()} == {"finished"}
    notes = [note for one in runs.values() for note in one.notes]
    assert all(note.startswith("an earlier attempt at this run was interrupted") for note in notes)
    assert len(begun(tmp_path)) == 4 + len(notes)
    check_clean(tmp_path / OUT)


@pytest.mark.slow
@pytest.mark.usefixtures("real_slurm")
def test_a_killed_study_of_a_real_slurm_loses_nothing(tmp_path: Path) -> None:
    written(tmp_path, f'runs = 2\n[engine]\nkind = "slurm"\nparallel = 2\n{FOUR}', WAITS)
    study = started(tmp_path)
    await_that(lambda: len(begun(tmp_path)) == 2)
    run_under_way = killed_at_a_run(tmp_path, study)
    time.sleep(1.0)
    os.kill(run_under_way, 0)  # its job goes on
    (tmp_path / ".cache" / "go").touch()
    assert "8 runs are made; " in run(tmp_path)
    runs = results_of(tmp_path / OUT)
    assert {(one.outcome, *one.notes) for one in runs.values()} == {("finished",)}
    assert len(begun(tmp_path)) == 8  # nothing was made twice
    check_clean(tmp_path / OUT)
