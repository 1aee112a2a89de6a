"""Trainings of several ranks, as launchers start them: recorded, replayed and compared, also over several hosts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.remote_shell import host_server
from tests.support import COMMAND, LIMIT, Done, Reprokit

ROOT = Path(__file__).parents[2]
TRAININGS = ROOT / "tests" / "trainings"
MPI = Path(os.environ.get("REPROKIT_MPI_PYTHON") or ROOT / ".venv-mpi" / "bin" / "python")
MPIRUN = ["mpirun", "--oversubscribe", "-n", "3"]
MPICH = str(ROOT / ".venv-mpich" / "bin" / "python")  # of its own, as both have a bin/mpirun
HYDRA = [f"{ROOT}/.venv-mpich/bin/mpiexec.hydra", "-n", "3"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEPS = str(TRAININGS / "mpi_steps.py")

Function = TypeVar("Function", bound=Callable[..., None])

pytestmark = pytest.mark.slow


def with_mpi(function: Function) -> Function:
    """Leave a test to make test-extended, which installs Open MPI, mpi4py, Dask and accelerate."""
    needs_python = pytest.mark.skipif(not MPI.exists(), reason=f"{MPI} is not there: make .venv-mpi/.installed")
    marked: Function = pytest.mark.extended(needs_python(function))
    return marked


@pytest.fixture(autouse=True)
def _launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI's programs are found, also by root; each rank has one thread."""
    monkeypatch.setenv("PATH", f"{MPI.parent}:{os.environ['PATH']}")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def identical(reprokit: Reprokit, *command: str) -> None:
    """Record a command as `one`, and expect the same of its replay as `two`."""
    done = reprokit.run("record", "-o", "one", "--", *command)
    assert done.returncode == 0, done.stderr[-3000:]
    done = reprokit.run("replay", "one", "-o", "two")
    assert done.returncode == 0, done.stderr[-3000:]
    compared = reprokit.run("verify", "one", "two")
    assert compared.returncode == 0, compared.stdout


def repeated(reprokit: Reprokit, *command: str) -> tuple[Done, Done]:
    """Record a command as `one`, and replay it as `two`; again where Ray gave up, which waits 15 s for its agent."""

    def started(*words: str) -> Done:
        done = reprokit.run(*words)
        for _ in range(2):
            if "timed out during startup" in done.stderr:
                done = reprokit.run(*words)
        return done

    recorded = started("record", "--overwrite", "-o", "one", "--", *command)
    assert recorded.returncode == 0, recorded.stderr[-3000:]
    return recorded, started("replay", "one", "--overwrite", "-o", "two")


def lines(run: Path, kind: str) -> Iterator[dict[str, Any]]:
    for line in (run / "metrics.jsonl").read_text().splitlines():
        if line.startswith(f'{{"k":"{kind}"'):
            yield json.loads(line)


def facts(run: Path, name: str) -> dict[str, dict[str, Any]]:
    """What each process told of its collectives."""
    return {line["p"]: line["facts"] for line in lines(run, "compute") if line["name"] == f"collectives {name}"}


needs_mpich = pytest.mark.skipif(not Path(MPICH).exists(), reason=f"{MPICH} is not there: make .venv-mpich/.installed")
each_launcher = pytest.mark.parametrize(
    ("launch", "library"),
    [
        pytest.param([*MPIRUN, str(MPI)], "Open MPI", id="open-mpi"),
        pytest.param([*HYDRA, MPICH], "MPICH", id="mpich", marks=needs_mpich),
    ],
)


@with_mpi
@each_launcher
def test_numpy_over_mpi(reprokit: Reprokit, launch: list[str], library: str) -> None:
    identical(reprokit, *launch, STEPS, "weights")
    found = facts(reprokit.directory / "one", "MPI")
    assert found.keys() == {"rank0", "rank1", "rank2"}
    assert found["rank1"]["ranks"] == 3
    assert found["rank1"]["library"].startswith(library)
    collectives = [line for line in lines(reprokit.directory / "one", "collective") if line["p"] == "rank1"]
    assert [line["operation"] for line in collectives] == ["bcast", *["Allreduce", "allreduce"] * 12]
    assert [line["step"] for line in collectives] == list(range(25))


@with_mpi
@each_launcher
def test_ranks_that_ranks_spawn_have_names_of_their_own(reprokit: Reprokit, launch: list[str], library: str) -> None:
    identical(reprokit, *launch, str(TRAININGS / "mpi_spawned.py"))
    jobs = ("2", "3") if library == "Open MPI" else ("",)
    ranks = {f"rank{rank}/job{job}" for rank in range(2) for job in jobs}
    assert facts(reprokit.directory / "one", "MPI").keys() == {"rank0", "rank1", "rank2", *ranks}


@with_mpi
@pytest.mark.parametrize(
    "launch",
    [
        [str(MPI), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        [*MPIRUN[:-1], "2", str(MPI)],
    ],
    ids=["torchrun", "mpirun"],
)
def test_mpirun_inside_of_ranks(reprokit: Reprokit, launch: list[str]) -> None:
    identical(reprokit, *launch, str(TRAININGS / "mpi_nested.py"))
    ranks = {f"rank{outer}.rank{inner}" for outer in range(2) for inner in range(2)}
    assert facts(reprokit.directory / "one", "MPI").keys() == ranks


@with_mpi
def test_the_collective_is_named_that_gave_something_else(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "one", "--", *MPIRUN, str(MPI), STEPS)
    reprokit.run("replay", "one", "-o", "two", environment={"FLIPS": "5"})
    compared = reprokit.run("verify", "one", "two")
    assert "collectives mpi of process rank0 differs first at call 11: Allreduce float64[5000] of 3 ranks" in (
        compared.stdout
    )


@with_mpi
@each_launcher
def test_the_rank_that_died_is_named_and_the_others_records_are_whole(
    reprokit: Reprokit, launch: list[str], library: str
) -> None:
    reprokit.run("record", "-o", "one", "--", *launch, STEPS)
    done = reprokit.run("replay", "one", "-o", "two", environment={"DIES": "6"})
    # MPICH's launcher gives the status of one of those that ended, be it one that it killed itself.
    assert done.returncode in ((7,) if library == "Open MPI" else (7, 9))
    compared = reprokit.run("verify", "one", "two")
    assert compared.returncode == 1
    assert "note: of the right run, rank 1 ended early, after call 12 of its collectives" in compared.stdout
    assert "rank 0 ended early" not in compared.stdout
    for rank in ("rank0", "rank2"):
        done_by = [line["step"] for line in lines(reprokit.directory / "two", "collective") if line["p"] == rank]
        assert done_by == list(range(len(done_by)))
        assert len(done_by) >= 13


@with_mpi
def test_algorithms_that_a_file_chose_are_named_and_pinned(reprokit: Reprokit) -> None:
    parameters = reprokit.directory / "home" / ".openmpi" / "mca-params.conf"
    parameters.parent.mkdir(parents=True)
    parameters.write_text(
        "coll_tuned_use_dynamic_rules = 1\ncoll_tuned_priority = 90\ncoll_tuned_allreduce_algorithm = 1\n"
    )
    command = ["--", *MPIRUN, str(MPI), STEPS, "weights"]
    done = reprokit.run("record", "-o", "one", *command, environment={"HOME": str(parameters.parents[1])})
    assert done.returncode == 0, done.stderr[-3000:]
    assert facts(reprokit.directory / "one", "MPI")["rank2"]["coll_tuned_allreduce_algorithm"] == 1
    done = reprokit.run("replay", "one", "-o", "two")
    assert reprokit.run("verify", "one", "two").returncode == 0, done.stderr
    reprokit.run("record", "-o", "other", *command)
    compared = reprokit.run("verify", "one", "other").stdout
    assert "compute.collectives MPI.coll_tuned_allreduce_algorithm (3 processes): 1 against (none)" in compared


@pytest.mark.torch
def test_shards_of_fsdp(reprokit: Reprokit) -> None:
    identical(
        reprokit, *TORCHRUN, "--standalone", "--nproc-per-node=2", str(TRAININGS / "captured_shards.py"), "wrapped"
    )
    found = facts(reprokit.directory / "one", "group#0")
    assert found == {f"rank{rank}": {"backend": "gloo", "ranks": 2, "rank": rank} for rank in range(2)}
    assert {line["operation"] for line in lines(reprokit.directory / "one", "collective")} == {"all_gather"}


@pytest.mark.extended
@pytest.mark.tensorflow
def test_a_custom_loop_of_several_workers(reprokit: Reprokit) -> None:
    identical(reprokit, sys.executable, str(TRAININGS / "tensorflow_workers.py"))
    found = facts(reprokit.directory / "one", "workers")
    assert {process: told["ranks"] for process, told in found.items()} == {"rank0": 2, "rank1": 2}


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_processes_of_jax(reprokit: Reprokit) -> None:
    identical(reprokit, sys.executable, str(TRAININGS / "jax_ranks.py"))
    assert facts(reprokit.directory / "one", "JAX")["rank1"] == {"ranks": 2, "backend": "gloo"}


@with_mpi
@pytest.mark.torch
def test_accelerate(reprokit: Reprokit) -> None:
    launch = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    identical(reprokit, str(MPI.with_name("accelerate")), "launch", *launch, str(TRAININGS / "accelerated.py"))
    assert facts(reprokit.directory / "one", "DDP#0")["rank0"]["order"] == "3 2 1 0"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray waits longer for its daemons, and needs no token."""
    settings = {"AUTH_MODE": "disabled", "USAGE_STATS_ENABLED": "0", "raylet_start_wait_time_s": "50"}
    for name, value in settings.items():
        monkeypatch.setenv(f"RAY_{name}", value)


@with_mpi
def test_actors_and_tasks_of_ray(reprokit: Reprokit, ray: None) -> None:
    """What actors draw and which task is done first is as recorded."""
    recorded, replayed = repeated(reprokit, str(MPI), str(TRAININGS / "ray_actors.py"))
    assert replayed.stdout == recorded.stdout != "", replayed.stderr[-3000:]
    assert "reprokit: orders: " in replayed.stderr
    assert reprokit.run("verify", "one", "two").returncode == 0


@with_mpi
@pytest.mark.torch
def test_workers_of_ray_train(reprokit: Reprokit, ray: None) -> None:
    """They are told their rank by torch.distributed alone, and are compared as ranks."""
    recorded, replayed = repeated(reprokit, str(MPI), str(TRAININGS / "ray_train.py"))
    assert replayed.stdout == recorded.stdout != "", replayed.stderr[-3000:]
    compared = reprokit.run("verify", "one", "two")
    assert compared.stdout.startswith("identical: "), compared.stdout
    assert re.search("^trail +identical +2 compared", compared.stdout, re.MULTILINE), compared.stdout
    agreed = reprokit.run("verify", "one", "--ranks")
    assert "on 2 ranks: parameters are equal after each of 6 steps" in agreed.stdout


def on_two_hosts(reprokit: Reprokit, *arguments: str, command: list[str] | None = None, **environment: str) -> None:
    """Start reprokit on both: % in its arguments is the number of the host."""
    started = []
    for number in range(2):
        words = [word.replace("%", str(number)) for word in [*arguments, *(command or [])]]
        place = reprokit.directory / f"place{number}"
        place.mkdir(exist_ok=True)
        merged = {**os.environ, **environment, "RESULTS": str(place)}
        started.append(subprocess.Popen([COMMAND, *words], cwd=place, env=merged, stderr=subprocess.PIPE, text=True))
    ended = [(process.communicate(timeout=2 * LIMIT)[1], process.returncode) for process in started]
    assert [status for _, status in ended] == [0, 0], ended


@pytest.mark.extended
@pytest.mark.torch
def test_each_host_writes_its_part(reprokit: Reprokit) -> None:
    """Two launchers on this machine, with a working directory each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = ["--nnodes=2", "--node-rank=%", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = ["--", *TORCHRUN, *place, str(TRAININGS / "pytorch_ranks.py")]
    on_two_hosts(reprokit, "record", "-o", "../one/hosts/node%", command=command)
    on_two_hosts(reprokit, "replay", "../one/hosts/node%", "-o", "../two/hosts/node%")
    compared = reprokit.run("verify", "one", "two")
    assert compared.returncode == 0, compared.stdout
    assert compared.stdout.startswith("identical: on each of 2 hosts everything")
    on_two_hosts(reprokit, "replay", "../one/hosts/node%", "-o", "../three/hosts/node%", CORRUPTED="4")
    compared = reprokit.run("verify", "one", "three")
    assert compared.returncode == 1
    assert compared.stdout.startswith("different: host node1: parameters before the step of optimizer#0")
    assert "note: of the right run, ranks 0, 1 parted at step 4" in compared.stdout


@with_mpi
def test_the_daemon_of_another_host_writes_its_part(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI starts it by what takes the place of ssh; a replay of the first host's part replays the others'."""
    spread = ["-x", "FLIPS", "-H", "localhost:1,hostb:2", "--mca", "btl_tcp_if_include", "lo"]
    with host_server(reprokit.directory) as shell:
        monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", shell)
        command = ["--", "mpirun", *spread, "-n", "3", str(MPI), STEPS]
        done = reprokit.run("record", "-o", "one/hosts/hosta", *command, environment={"FLIPS": "5"})
        assert done.returncode == 0, done.stderr[-3000:]
        monkeypatch.delenv("PRTE_MCA_plm_ssh_agent")
        for run, flips in (("two", "5"), ("three", "7")):
            done = reprokit.run("replay", "one/hosts/hosta", "-o", f"{run}/hosts/hosta", environment={"FLIPS": flips})
            assert done.returncode == 0, done.stderr[-3000:]
    for host, ranks in (("hosta", {"rank0"}), ("hostb", {"rank1", "rank2"})):
        assert facts(reprokit.directory / "one" / "hosts" / host, "MPI").keys() == ranks
    compared = reprokit.run("verify", "one", "two")
    assert compared.returncode == 0, compared.stdout
    assert compared.stdout.startswith("identical: on each of 2 hosts everything")
    compared = reprokit.run("verify", "one", "three")
    assert "collectives mpi of process rank0 differs first at call 11: Allreduce" in compared.stdout


@with_mpi
def test_each_rank_of_mpirun_writes_its_part(reprokit: Reprokit) -> None:
    parts = {}
    for command in ("record -o one/hosts/rank$R -- python", "replay one/hosts/rank$R -o two/hosts/rank$R --"):
        script = command.replace("$R", "$OMPI_COMM_WORLD_RANK")
        script = f"exec {COMMAND} {script.removesuffix(' --')}" + (f" {STEPS}" if "record" in script else "")
        done = subprocess.run([*MPIRUN, "sh", "-c", script], cwd=reprokit.directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        parts[command] = done.stdout
    assert len(set(parts.values())) == 1
    compared = reprokit.run("verify", "one", "two")
    assert compared.returncode == 0, compared.stdout
    assert "host rank2" in compared.stdout
