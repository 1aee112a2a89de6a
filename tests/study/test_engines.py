"""Studies whose pairs are made by Dask, Slurm and Kubernetes, on real workers of this machine."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from reprokit.core.errors import BadStudy, CannotBegin, EngineUnusable, ReprokitError, StoreUnreachable
from reprokit.study import description, engines, runner, store
from reprokit.study.attempt import PairReport, PairTask, Task, encoded_report
from reprokit.study.description import Engine, Study
from reprokit.study.engines import jobs, kubernetes, shared_store, worker
from reprokit.study.engines import slurm as slurm_engine
from reprokit.study.engines.engine import PairSchedule
from reprokit.study.engines.tasks import JOBS, Desk, TaskCounts
from reprokit.study.engines.worker import Claim, JobEnd
from reprokit.study.results import Evaluation, MetricSeries, PairResult, RunResult
from tests.slurm import Slurm
from tests.study.studies import OUT, PYTHON, run, words, written
from tests.support import COMMAND, LIMIT, Reprokit, training_text

SCHEMA = Path(__file__).parent / "kubernetes-1.37.json"

TRAINING = training_text("study_workers.py")
TWO = """
runs = 2
[engine]
{engine}
[[setup]]
name = "dies"
variables = {{KIND = "dies"}}
[[setup]]
name = "recorded"
entropy = "replayed"
"""


def training(mark: str, number: str) -> str:
    return TRAINING.replace('b"multiprocessing", signal.SIGKILL', f"{mark}, {number}")


def results(directory: Path) -> dict[tuple[str, str], RunResult]:
    return {(one.setup, one.part): one for one in store.read_results(directory)}


def pairs(directory: Path) -> dict[str, PairResult]:
    return {one.setup: one for one in store.read_pairs(directory)}


def check_death(directory: Path, said: str) -> None:
    """Each run of "dies" was begun once and is lost with its worker; the other pair is as on this machine."""
    runs, found = results(directory / OUT), pairs(directory / OUT)
    assert (directory / ".cache" / "dies").read_text().count("\n") == 2
    for part in ("first", "second"):
        assert runs["dies", part].outcome == "lost"
        assert runs["recorded", part].outcome == "finished"
        assert len(runs["recorded", part].evaluations) == 1
        assert (directory / OUT / runs["recorded", part].evaluations[0].predictions).is_file()
    assert found["dies"].identical is None
    assert found["recorded"].identical is True
    assert runs["recorded", "first"].profile > 0
    assert (directory / ".cache" / "plain").read_text() == "True False None\n" * 2
    assert "LOST" in said
    assert "4 runs are made, 2 of them failed" in said
    assert not list((directory / OUT / JOBS).iterdir())
    assert not list((directory / OUT / store.RUNS).iterdir())


@pytest.mark.slow
def test_dask_workers_make_pairs_and_one_that_dies_costs_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    written(tmp_path, TWO.format(engine='kind = "dask"'), training("b'multiprocessing'", "signal.SIGKILL"))
    said = run(tmp_path, status=1)
    check_death(tmp_path, said)
    runs = results(tmp_path / OUT)
    assert "died" in runs["dies", "first"].ended
    assert runs["recorded", "first"].worker.startswith("tcp://127.0.0.1:")
    assert runs["recorded", "first"].worker == runs["recorded", "second"].worker
    assert {one.together for one in runs.values()} == {1}


@pytest.mark.slow
def test_slurm_jobs_that_are_preempted_are_lost_and_not_made_again(tmp_path: Path) -> None:
    engine = f'kind = "slurm"\naddress = "local"\nparallel = 2\nstore = "file://{tmp_path}/store"'
    # submitit would queue a job once more that gets this before its time is over.
    written(tmp_path, TWO.format(engine=engine), training("b'submitit.core._submit'", "signal.SIGUSR2"))
    said = run(tmp_path, status=1)
    check_death(tmp_path, said)
    runs = results(tmp_path / OUT)
    assert runs["recorded", "first"].worker.startswith("job ")
    assert {one.together for one in runs.values()} == {2}
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_jobs_of_a_slurm_without_accounting_are_lost_when_they_die_and_say_nothing_of_it(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    engine = 'kind = "slurm"\nparallel = 2'
    written(tmp_path, TWO.format(engine=engine), training("b'submitit.core._submit'", "signal.SIGKILL"))
    said = run(tmp_path, status=1)
    check_death(tmp_path, said)
    assert all(line.startswith("reprokit: ") for line in said.splitlines()), said


# The depot


@pytest.mark.parametrize("kind", ["path", "file", "local", "memory"])
def test_a_depot_keeps_small_files(tmp_path: Path, kind: str) -> None:
    place = {"path": f"{tmp_path}/a/b", "memory": f"memory://{tmp_path.name}"}.get(kind, f"{kind}://{tmp_path}/a/b")
    shared_store.check(place)
    one, other = shared_store.opened(place), shared_store.opened(shared_store.below(place, "inner"))
    assert one.get("x", 10) is None
    assert one.create("x", b"first")
    assert not one.create("x", b"second")
    assert shared_store.opened(place).get("x", 10) == b"first"
    one.put("x", b"0123456789")
    assert one.get("x", 3) == b"0123"  # more than was asked for shows that it is too large
    other.put("x", b"")
    assert (one.get("inner/x", 10), other.get("x", 10)) == (b"", b"")
    one.remove("x")
    one.remove("x")
    assert one.get("x", 10) is None


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file:///proc/nowhere", "store-unreachable: the store file:///proc/nowhere cannot be reached: "),
        ("ftp://127.0.0.1:1/x", "Connection refused"),
        ("nonsense://x", "nonsense"),
        ("/proc/nowhere", "store-unreachable: "),
    ],
)
def test_a_store_that_is_not_reachable_is_said_before_the_first_run(tmp_path: Path, place: str, words: str) -> None:
    path = written(tmp_path, TWO.format(engine=f'kind = "dask"\nstore = "{place}"'))
    described = description.read(path)
    with pytest.raises(ReprokitError) as caught:
        runner.run(described, tmp_path / OUT, path)
    assert words in f"{caught.value.slug}: {caught.value}"
    assert "\n" not in str(caught.value)
    assert not (tmp_path / OUT).exists()


def test_a_store_that_gives_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "PATIENCE", 0.05)
    monkeypatch.setattr(shared_store, "_probe", lambda *_: threading.Event().wait(5))
    with pytest.raises(StoreUnreachable, match=r"does not answer within 0\.05 s"):
        shared_store.check("memory://x")


# Settings that cannot work


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ('kind = "local"\nstore = "x"', 'not for kind = "local"'),
        ('kind = "dask"\nstore = "shared"', "begins with /"),
        ('kind = "dask"\noptions = {GPU = 1}', "need the address of a scheduler"),
        ('kind = "dask"\naddress = "tcp://x:1"\noptions = {GPU = "one"}', "their values are numbers"),
        ('kind = "slurm"\naddress = "tcp://x"', "is left out"),
        ('kind = "kubernetes"', "needs engine.store"),
        ('kind = "kubernetes"\nstore = "/v"\noptions = {image = "i", directory = "/d"}', "options.claim names"),
        ('kind = "kubernetes"\nstore = "/v"\noptions = {image = "i"}', "directory"),
        ('kind = "kubernetes"\nstore = "/v"\noptions = {image = "i", directory = "d"}', "inside of the image"),
        ('kind = "kubernetes"\nstore = "s3://x"\noptions = {image = "i", directory = "/d", nodes = 1}', "nodes"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, engine: str, words: str) -> None:
    study = description.read(written(tmp_path, TWO.format(engine=engine))).study
    with pytest.raises((BadStudy, EngineUnusable), match=words):
        engines.check(study)


def test_what_is_kept_needs_a_shared_directory(tmp_path: Path) -> None:
    text = 'keep = "all"\n' + TWO.format(engine=f'kind = "dask"\nstore = "{tmp_path}"')
    with pytest.raises(BadStudy, match=r"leave engine\.store out"):
        engines.check(description.read(written(tmp_path, text)).study)


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
    with pytest.raises(EngineUnusable, match="no parameter partitoin for Slurm; it has account, "):
        slurm_engine.check(Engine(kind="slurm", options={"partitoin": "x"}))
    settings = Engine(kind="slurm", options={"partition": "gpu", "time": 30, "gres": "gpu:1", "cpus_per_task": 4})
    slurm_engine.check(settings)
    slurm_engine.Slurm(settings, tmp_path).submit("place", "name")
    script = (tmp_path / "submitted").read_text()
    for line in ("partition=gpu", "time=30", "gres=gpu:1", "cpus-per-task=4", "no-requeue"):
        assert f"#SBATCH --{line}\n" in script


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


# What comes back


def task(directory: Path, part: str, mode: str = "observed", made: RunResult | None = None) -> Task:
    name = store.name_of("a", 1, part)
    return Task(
        setup="a",
        pair=1,
        part=part,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        command=(sys.executable, "-c", "pass"),
        working_directory=str(directory),
        place=str(directory),
        run=str(directory / store.RUNS / name),
        together=3,
    )


def pair_of(directory: Path, mode: str = "observed", made: RunResult | None = None) -> PairTask:
    return PairTask(first=task(directory, "first", mode), second=task(directory, "second", mode), made=made)


def result(part: str, **changes: Any) -> RunResult:
    fields = {"setup": "a", "pair": 1, "part": part, "mode": "observed", "outcome": "finished"}
    return RunResult(**{**fields, "seconds": 1.0, "processor": 1.0, **changes})


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.runs: list[RunResult] = []
        self.pairs: list[PairResult] = []

    def run_ended(self, run: RunResult) -> None:
        self.runs.append(run)

    def pair_ended(self, _task: PairTask, pair: PairResult) -> None:
        self.pairs.append(pair)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Of a study whose results come back through a store."""
    (tmp_path / store.STUDY).write_bytes(STUDY)
    return Desk(tmp_path, f"{tmp_path}/store")


STUDY = msgspec.json.encode(
    store.StudyFile(reprokit="1", base="/", study=Study(name="tiny", command=("x",), setup=())),
)


def come_back(desk: Desk, name: str, runs: list[RunResult], pair: PairResult | None = None) -> None:
    desk.depot.put(f"{name}.{worker.REPORT}", encoded_report(PairReport(runs=runs, pair=pair)))
    desk.depot.put(f"{name}.{worker.CLAIM}", msgspec.json.encode(Claim(worker="w", host="h")))


def test_a_report_is_taken_for_what_was_asked_and_nothing_else(tmp_path: Path, desk: Desk) -> None:
    name = desk.hand_out(pair_of(tmp_path))
    outside = Evaluation(name="e", task="regression", count=1, predictions="predictions/b-01-first.json")
    first = result("first", together=1, evaluations=[outside], notes=["x" * 5000] * 50, host="h" * 5000)
    come_back(desk, name, [first, result("second")], PairResult(setup="a", pair=1, identical=True))
    heard = Heard()
    desk.take_back(name, heard, "")
    taken = heard.runs[0]
    assert taken.together == 3
    assert taken.evaluations[0].predictions == ""
    assert (len(taken.notes), len(taken.notes[0]), len(taken.host)) == (20, 1000, 500)
    assert heard.pairs[0].identical is True
    assert not list(tmp_path.rglob(f"{name}*"))


WRONG = [
    [result("second"), result("first")],
    [result("first", setup="b")],
    [result("first", pair=2)],
    [result("first", mode="recorded")],
    [result("first", seconds=float("nan"))],
    [result("first", series=[MetricSeries(name="s", values=[0.0] * 10_001, by="step")])],
    [result("first"), result("second"), result("second")],
]


@pytest.mark.parametrize("runs", WRONG)
def test_a_report_of_something_else_is_none(tmp_path: Path, desk: Desk, runs: list[RunResult]) -> None:
    name = desk.hand_out(pair_of(tmp_path))
    come_back(desk, name, runs, PairResult(setup="a", pair=1, identical=True))
    heard = Heard()
    rest = desk.take_back(name, heard, "worker w on h died")
    assert [(run.part, run.outcome) for run in heard.runs] == [("first", "lost")]
    assert rest is not None
    assert rest.made == heard.runs[0]
    assert not heard.pairs


@pytest.mark.parametrize("data", [b"{", b'{"runs":[{}]}', b"[" * 100_000, b"\xff"])
def test_what_is_no_report_is_none(tmp_path: Path, desk: Desk, data: bytes) -> None:
    name = desk.hand_out(pair_of(tmp_path))
    for kind in (worker.REPORT, worker.CLAIM):
        desk.depot.put(f"{name}.{kind}", data)
    assert desk.claim(name) in (None, Claim())
    assert desk.report(name, desk.task(name)).runs == []


def test_files_that_come_back_are_bounded(tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprokit.study.predictions.MAX_FILE", 10)
    for size, is_taken in ((10, True), (11, False)):
        name = desk.hand_out(pair_of(tmp_path))
        come_back(desk, name, [result("first"), result("second")], PairResult(setup="a", pair=1))
        desk.depot.put(f"{name}.a-01-first.json", b"x" * size)
        desk.take_back(name, Heard(), "")
        file = tmp_path / store.PREDICTIONS / "a-01-first.json"
        assert file.exists() == is_taken
        file.unlink(missing_ok=True)
    assert not list(tmp_path.rglob(f"{name}*"))


def test_a_recording_that_is_lost_has_no_replay(tmp_path: Path, desk: Desk) -> None:
    first, second = task(tmp_path, "first", "recorded"), task(tmp_path, "second", "replayed")
    name, heard = desk.hand_out(PairTask(first=first, second=second)), Heard()
    assert desk.take_back(name, heard, "worker w on h died") is None
    assert [run.outcome for run in heard.runs] == ["lost", "failed"]
    assert heard.pairs[0].words == "not compared: the first run is lost (worker w on h died)"


def test_an_order_is_begun_only_once_and_not_at_all_if_it_is_withdrawn(tmp_path: Path, desk: Desk) -> None:
    name = desk.hand_out(pair_of(tmp_path))
    desk.depot.put(f"{name}.{worker.CLAIM}", b"{}")
    with pytest.raises(CannotBegin, match="started once more"):
        worker.work(desk.place, name, "w")
    withdrawn = desk.hand_out(pair_of(tmp_path))
    desk.tell(withdrawn, worker.UNLESS_BEGUN)
    worker.work(desk.place, withdrawn, "w")
    assert (desk.claim(withdrawn), desk.ended(withdrawn)) == (None, JobEnd())
    with pytest.raises(CannotBegin, match="is that the same place there"):
        worker.work("memory://elsewhere", name, "w")


def test_what_an_earlier_start_has_left_is_taken_back(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SILENCE", 0.5)
    _never_begun, died, ended, goes_on = (desk.hand_out(pair_of(tmp_path)) for _ in range(4))
    whole = [result("first"), result("second")], PairResult(setup="a", pair=1)
    come_back(desk, died, [result("first")])
    come_back(desk, ended, *whole)
    desk.depot.put(f"{ended}.{worker.ENDED}", msgspec.json.encode(JobEnd()))
    come_back(desk, goes_on, [])  # on another machine

    def beat() -> None:
        for number in range(10):
            desk.depot.put(f"{goes_on}.{worker.BEAT}", str(number).encode())
            time.sleep(0.1)
        come_back(desk, goes_on, *whole)
        desk.depot.put(f"{goes_on}.{worker.ENDED}", msgspec.json.encode(JobEnd()))

    thread = threading.Thread(target=beat)
    thread.start()
    heard = Heard()
    PairSchedule(jobs.Jobs(desk, NoCluster), 1).make(iter(()), heard)
    thread.join()
    assert [run.part for run in heard.runs] == ["first", "first", "second", "first", "second"]
    assert len(heard.pairs) == 2
    assert desk.names() == []


class NoCluster:
    """To which nothing is handed."""

    def close(self) -> None:
        pass

    def submit(self, place: str, name: str) -> None:
        raise AssertionError(name)

    def ended(self, name: str) -> str | None:
        raise AssertionError(name)

    def cancel(self, name: str) -> None:
        raise AssertionError(name)


# Any scheduler


def listed(directory: Path) -> list[dict[str, Any]]:
    """The tasks that `study tasks` prints."""
    done = Reprokit(directory).run("study", "tasks", *words(directory)[2:])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def collected(directory: Path, *options: str, status: int) -> str:
    """Gather what was done, as a user does."""
    done = Reprokit(directory).run("study", "collect", str(directory / OUT), *options)
    assert done.returncode == status, done.stderr
    return done.stderr


def test_tasks_are_made_in_any_order_and_gathered_in_parts(tmp_path: Path) -> None:
    setups = "".join(f'[[setup]]\nname = "{name}"\n' for name in ("a", "b", "c"))
    written(tmp_path, f"runs = 2\n{setups}")
    tasks = listed(tmp_path)
    assert listed(tmp_path) == tasks  # of which nobody has begun any
    commands = {task["setup"]: str(task["command"]) for task in tasks}
    assert set(commands) == {"a", "b", "c"}
    assert "3 pairs of" in run(tmp_path, status=2)
    subprocess.run(commands["c"], shell=True, check=True, cwd="/")
    assert collected(tmp_path, status=1).endswith("2 of 6 runs are made; pairs at work: 0, not begun: 2\n")
    assert subprocess.run(commands["c"], shell=True, cwd="/", stderr=subprocess.DEVNULL).returncode == 2
    assert [task["setup"] for task in listed(tmp_path)] == [name for name in commands if name != "c"]
    (name,) = [task["task"] for task in tasks if task["setup"] == "a"]
    (tmp_path / OUT / JOBS / f"{name}.{worker.CLAIM}").write_bytes(msgspec.json.encode(Claim(worker="w", host="h")))
    assert collected(tmp_path, status=1).endswith("pairs at work: 1, not begun: 1\n")
    assert collected(tmp_path, "--over", status=1).endswith("3 of 6 runs are made, 1 of them failed\n")
    for task in listed(tmp_path):
        subprocess.run(task["command"], shell=True, check=True, cwd="/")
    for _ in range(2):
        assert "6 of 6 runs are made, 1 of them failed" in collected(tmp_path, status=1)
    assert {key: one.outcome for key, one in results(tmp_path / OUT).items() if one.outcome != "finished"} == {
        ("a", "first"): "lost"
    }
    assert pairs(tmp_path / OUT)["b"].words


# Kubernetes


IN_IMAGE = """
runs = 2
data = ["data"]
[engine]
kind = "kubernetes"
store = "file://{store}"
parallel = 5
options = {{image = "training:1", directory = "{image}", python = "{python}", cpu = 2, memory = "4Gi", gpus = 1}}
[[setup]]
name = "seeded"
seeds = [3]
[[setup]]
name = "recorded"
entropy = "replayed"
"""


def validated(manifest: Any) -> dict[str, Any]:
    """The Job of a manifest whose objects are what Kubernetes' own schema says."""
    definitions = json.loads(SCHEMA.read_text())["definitions"]
    for item, kind in zip(manifest["items"], ("configmap-v1", "job-batch-v1"), strict=True):
        schema = {"$ref": f"#/definitions/{kind}", "definitions": definitions}
        jsonschema.Draft202012Validator(schema).validate(item)
    return dict(manifest["items"][1])


def test_kubernetes_makes_a_pair_for_each_index_of_a_job(tmp_path: Path) -> None:
    here, image = tmp_path / "here", tmp_path / "image"
    for directory in (here, image):
        directory.mkdir()
        (directory / "data").mkdir()
    text = IN_IMAGE.format(store=tmp_path / "store", image=image, python=PYTHON)
    path = written(here, text)
    (image / "train.py").write_text((here / "train.py").read_text())
    described, out = description.read(path), here / OUT
    assert runner.run(described, out, path).made == 0
    manifest = json.loads((out / kubernetes.MANIFEST).read_text())
    spec = validated(manifest)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (2, 2, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert runner.collect(out)[1] == TaskCounts(not_begun=2)
    with pytest.raises(EngineUnusable, match=r"2 pairs of .* have not come back"):
        runner.run(described, out, path)

    first = container(tmp_path, manifest, 1)
    assert first.returncode == 0, first.stderr
    said = subprocess.run([str(COMMAND), "study", "collect", str(out)], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.endswith("2 of 4 runs are made; pairs at work: 0, not begun: 1\n")
    again = container(tmp_path, manifest, 1)  # which Kubernetes may do
    assert again.returncode == 2
    assert again.stderr.startswith("reprokit: cannot-begin: its job was started once more")
    runs = results(out)
    assert set(runs) == {("recorded", "first"), ("recorded", "second")}
    assert (out / runs["recorded", "first"].evaluations[0].predictions).is_file()
    assert (image / "w.npy").exists()
    assert not (here / "w.npy").exists()
    assert pairs(out)["recorded"].identical is True

    (name,) = [path.name.removesuffix(f".{worker.ORDER}") for path in (out / JOBS).iterdir()]
    (place,) = (tmp_path / "store").iterdir()
    (place / f"{name}.{worker.CLAIM}").write_bytes(msgspec.json.encode(Claim(worker="pod-0", host="node")))
    assert runner.collect(out)[1] == TaskCounts(at_work=1)
    done, rest = runner.collect(out, source=str(place), is_over=True)
    assert (done.made, done.failed, rest) == (3, 1, TaskCounts())
    assert results(out)["seeded", "first"].ended == "worker pod-0 on node died (the study's tasks are over)"
    runner.run(described, out, path)  # makes a manifest of what is left
    assert validated(json.loads((out / kubernetes.MANIFEST).read_text()))["spec"]["completions"] == 1


def container(directory: Path, manifest: Any, index: int) -> subprocess.CompletedProcess[str]:
    """Run what the container of a Job would run, with its volumes at places of this machine."""
    orders = directory / kubernetes.FILE
    orders.write_bytes(base64.b64decode(manifest["items"][0]["binaryData"][kubernetes.FILE]))
    (found,) = manifest["items"][1]["spec"]["template"]["spec"]["containers"]
    command = [str(orders) if word == f"{kubernetes.ORDERS}/{kubernetes.FILE}" else word for word in found["command"]]
    return subprocess.run(
        command,
        cwd=found["workingDir"],
        env={**os.environ, "JOB_COMPLETION_INDEX": str(index)},
        capture_output=True,
        text=True,
    )


def test_a_volume_is_mounted_where_the_store_is_a_path() -> None:
    options: dict[str, Any] = {"image": "i", "directory": "/d", "claim": "c", "secret": "s", "service_account": "a"}
    settings = Engine(kind="kubernetes", store="/volume", parallel=9, options=options)
    kubernetes.check(settings)
    job = validated(kubernetes.manifest("A_study!", [("n", b"{}")], "/volume/x", settings))
    pod = job["spec"]["template"]["spec"]
    assert {"name": "store", "mountPath": "/volume"} in pod["containers"][0]["volumeMounts"]
    assert {"name": "store", "persistentVolumeClaim": {"claimName": "c"}} in pod["volumes"]
    assert job["metadata"]["name"].startswith("reprokit-a-study-")
    assert "resources" not in pod["containers"][0]


# Interruptions


WAITS = """
import os, pathlib, time
here = pathlib.Path(".cache")
here.mkdir(exist_ok=True)
(here / f"began-{os.getpid()}").touch()
while not (here / "go").exists():
    time.sleep(0.05)
"""


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["dask", "slurm"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_elsewhere_goes_on(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    engine = f'kind = "{kind}"' + ('\naddress = "local"' if kind == "slurm" else "")
    text = f'runs = 2\n[engine]\n{engine}\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n'
    written(tmp_path, text, WAITS)
    cache, log, is_terminal = tmp_path / ".cache", tmp_path / "log", number == signal.SIGINT
    with open(log, "w") as file:
        study = subprocess.Popen(words(tmp_path), cwd=tmp_path, stderr=file, start_new_session=True)
    while not (cache.is_dir() and list(cache.iterdir())):
        assert study.poll() is None
        time.sleep(0.02)
    (os.killpg if is_terminal else os.kill)(study.pid, number)
    assert study.wait(timeout=LIMIT) == (130 if is_terminal else -9)
    assert "Traceback" not in log.read_text()
    (cache / "go").touch()
    assert "4 runs are made" in run(tmp_path)
    runs = results(tmp_path / OUT)
    assert {one.outcome for one in runs.values()} == {"finished"}
    if is_terminal:
        assert "interrupted" in runs["a", "first"].notes[0] or "interrupted" in runs["b", "first"].notes[0]
    assert not list((tmp_path / OUT / JOBS).iterdir())
