"""What a replay does when the program goes another way than recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.native.harness import Shim, run


@pytest.fixture
def program(build: Callable[..., str]) -> str:
    return build("requests.c")


def lines(output: bytes) -> list[bytes]:
    return output.split()


def test_another_recording_gives_other_bytes(shim: Shim, program: str) -> None:
    first = shim.record([program, "16"], "first")
    second = shim.record([program, "16"], "second")
    assert first.stdout != second.stdout
    assert shim.replay([program, "16"], profile="first").stdout == first.stdout
    assert shim.replay([program, "16"], profile="second").stdout == second.stdout


def test_derived_bytes_are_the_same_in_every_replay_and_in_no_other_place(shim: Shim, program: str) -> None:
    recorded = lines(shim.record([program, "16"]).stdout)
    replays = [lines(shim.replay([program, "16", "100", "100", "t100"]).stdout) for _ in range(3)]
    assert replays[0] == replays[1] == replays[2]
    assert replays[0][0] == recorded[0]
    assert len(set(replays[0])) == 4
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.derived, fidelity.derived_bytes, fidelity.unused) == (1, 3, 300, 0)
    assert [(p, r.thread, r.asked, r.match) for p, r in shim.events("replayed")] == [
        ("0", "m", 100, "derived"),
        ("0", "m", 100, "derived"),
        ("0", "m.1", 100, "derived"),
    ]


def test_live_bytes_are_real(shim: Shim, program: str) -> None:
    shim.record([program, "16"])
    replays = [lines(shim.replay([program, "16", "8"], policy="live").stdout) for _ in range(2)]
    assert replays[0][0] == replays[1][0]
    assert replays[0][1] != replays[1][1]
    assert shim.fidelity().live == 1


def test_strict_stops_and_says_why(shim: Shim, program: str) -> None:
    recorded = shim.record([program, "16"])
    replayed = shim.replay([program, "16", "8"], policy="strict")
    assert (replayed.returncode, replayed.stdout) == (125, recorded.stdout)
    why = (shim.directory / "replayed" / "stopped").read_text()
    assert why.startswith("process 0, thread m: a request for 8 bytes by ")
    assert why.endswith(" is not in the random profile")


def test_strict_lets_a_faithful_run_pass(shim: Shim, program: str) -> None:
    recorded = shim.record([program, "16", "t8", "r4"])
    replayed = shim.replay([program, "16", "t8", "r4"], policy="strict")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)


def test_an_event_that_moved_is_found_by_call_site_and_size(shim: Shim, program: str) -> None:
    recorded = lines(shim.record([program, "8", "16", "24", "16"]).stdout)
    replayed = lines(shim.replay([program, "16", "24", "8", "16"]).stdout)
    assert replayed == [recorded[1], recorded[2], recorded[0], recorded[3]]
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.moved, fidelity.unused) == (2, 2, 0)


def test_an_event_does_not_move_between_threads(shim: Shim, program: str) -> None:
    shim.record([program, "t16", "t24"])
    shim.replay([program, "t24", "t16", "t16"])
    fidelity = shim.fidelity()
    assert (fidelity.moved, fidelity.derived, fidelity.unused) == (0, 3, 2)


def test_a_moved_event_is_not_given_twice(shim: Shim, program: str) -> None:
    recorded = lines(shim.record([program, "t16", "8", "16x3"]).stdout)
    replayed = lines(shim.replay([program, "16x2", "8", "16x2"]).stdout)
    assert replayed[:4] == [*recorded[2:4], recorded[1], recorded[4]]
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.moved, fidelity.derived, fidelity.unused) == (2, 2, 1, 1)


def test_another_source_is_no_match(shim: Shim, program: str) -> None:
    recorded = lines(shim.record([program, "16"]).stdout)
    replayed = lines(shim.replay([program, "r16", "16"]).stdout)
    assert replayed[0] != recorded[0]
    assert replayed[1] == recorded[0]


def test_unused_events_are_counted(shim: Shim, program: str) -> None:
    shim.record([program, "16x5", "t8"])
    shim.replay([program, "16x2"])
    assert shim.fidelity().unused == 4


def test_a_process_that_was_not_recorded_gets_derived_bytes(shim: Shim, program: str) -> None:
    shim.record(["sh", "-c", "true"])
    replays = [shim.replay(["sh", "-c", f"{program} 16 16; true"]).stdout for _ in range(2)]
    assert replays[0] == replays[1]
    assert len(set(lines(replays[0]))) == 2


def test_outside_a_run_nothing_happens(shim: Shim, program: str) -> None:
    variables = shim.variables("no-such-run")
    results = [run([program, "16"], variables) for _ in range(2)]
    assert results[0].stdout != results[1].stdout
    assert [(r.returncode, r.stderr) for r in results] == [(0, b"")] * 2
    del variables["REPROKIT_RUN"]
    assert run([program, "16"], variables).returncode == 0


RANKS = """
import os, subprocess, sys
children = [
    subprocess.Popen([sys.argv[1], "16", "16"], env=dict(os.environ, RANK=rank), stdout=subprocess.PIPE)
    for rank in sys.argv[2:]
]
print([child.communicate()[0] for child in children])
"""


def test_a_rank_is_named_by_its_number_not_by_the_order_of_starts(shim: Shim, program: str) -> None:
    recorded = shim.record([sys.executable, "-c", RANKS, program, "0", "1"])
    replayed = shim.replay([sys.executable, "-c", RANKS, program, "1", "0"])
    first, second = eval(recorded.stdout)
    assert first != second
    assert eval(replayed.stdout) == [second, first]
    assert {process for process, _ in shim.events()} == {"0", "rank0", "rank1"}


def test_children_of_a_rank_are_their_own(shim: Shim, program: str) -> None:
    command = ["sh", "-c", f"{program} 8; {program} 8; true"]
    recorded = shim.record(command, extra={"RANK": "3"})
    assert {process for process, _ in shim.events()} == {"rank3/1", "rank3/2"}
    assert shim.replay(command, extra={"RANK": "3"}).stdout == recorded.stdout


def test_a_rank_that_the_launcher_has_names_nobody(shim: Shim, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    command = ["sh", "-c", f"{program} 8; RANK=0 {program} 8; true"]
    recorded = shim.record(command)
    assert {process for process, _ in shim.events()} == {"0/1", "rank0"}
    monkeypatch.delenv("SLURM_PROCID")
    assert shim.replay(command).stdout == recorded.stdout
    assert shim.fidelity().exact == 2


@pytest.mark.parametrize(
    ("rank", "launch"), [("SLURM_PROCID", "SLURM_STEP_ID"), ("PMI_RANK", "PMI_JOBID"), ("PMIX_RANK", "PMIX_NAMESPACE")]
)
def test_a_rank_of_another_launch_is_another_rank(
    shim: Shim, program: str, monkeypatch: pytest.MonkeyPatch, rank: str, launch: str
) -> None:
    """A batch script of Slurm has rank 0, in no step, and so have a task of its srun, and one of that task's own."""
    monkeypatch.setenv(rank, "0")
    if rank != "SLURM_PROCID":
        monkeypatch.setenv(launch, "7.0")
    inner = f"{program} 8; {launch}=7.2 {program} 8; true"
    command = ["sh", "-c", f"{program} 8; env {launch}=7.1 sh -c '{inner}'; true"]
    recorded = shim.record(command)
    assert {process for process, _ in shim.events()} == {"0/1", "rank0/1", "rank0.rank0"}
    monkeypatch.setenv(rank, "1")  # the job is another one, and so are its steps
    again = [
        command[0],
        command[1],
        command[2].replace("7.1", "9.3").replace("7.2", "9.4").replace(f"env {launch}", f"env {rank}=0 {launch}"),
    ]
    assert shim.replay(again).stdout == recorded.stdout
    assert shim.fidelity().exact == 3


@pytest.mark.parametrize(
    ("outer", "inner", "name"),
    [
        ("PMIX_RANK=2", "", "rank2"),
        ("SLURM_PROCID=1", "OMPI_COMM_WORLD_RANK=1", "rank1.rank1"),
        ("RANK=1", "OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0", "rank1.rank0"),  # one launcher sets both
        ("PMIX_RANK=1", "-u PMIX_RANK env PMIX_RANK=1", "rank1.rank1"),  # a launcher without the outer one's variables
        ("PMIX_RANK=1", "PMIX_RANK=1", "rank1"),
        ("OMPI_COMM_WORLD_RANK=1", "RANK=0", "rank1.rank0"),
        ("OMPI_COMM_WORLD_RANK=0", "RANK=1", "rank0.rank1"),  # and not rank1, which is another process of mpirun's
        ("PALS_RANKID=12", "JAX_PROCESS_ID=3 LOCAL_RANK=1", "rank12.rank3"),
        ('TF_CONFIG={"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}', "", "rank1"),
        ('TF_CONFIG={"cluster":{"chief":["a:1"],"worker":["b:1"]},"task":{"index":0,"type":"worker"}}', "", "rank1"),
        ('TF_CONFIG={"cluster":{"chief":["a:1"],"worker":["b:1"]},"task":{"type":"chief","index":"0"}}', "", "rank0"),
        ('TF_CONFIG={"cluster":{"ps":["a:1"]},"task":{"type":"ps","index":0}}', "", "0/1+/1"),
        ('TF_CONFIG={"task"', "", "0/1+/1"),
        ("RANK=first", "", "0/1+/1"),
    ],
)
def test_ranks_inside_of_ranks_have_names_of_both(shim: Shim, program: str, outer: str, inner: str, name: str) -> None:
    command = ["sh", "-c", f"env '{outer}' sh -c 'env {inner} {program} 8; true'; true"]
    recorded = shim.record(command)
    found = {process.partition("/")[0] if name.startswith("rank") else process for process, _ in shim.events()}
    assert {each.rstrip("+") for each in found} == {name}
    assert shim.replay(command).stdout == recorded.stdout
    assert shim.fidelity().exact == 1


def test_ranks_under_a_launcher_that_is_one_have_their_own_names(
    shim: Shim, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    config = '{"cluster":{"chief":["a:1"],"worker":["b:1"]},"task":{"type":"worker","index":0}}'
    monkeypatch.setenv("TF_CONFIG", config)
    shim.record(["sh", "-c", f"OMPI_COMM_WORLD_RANK=1 {program} 8; {program} 8; true"])
    assert {process for process, _ in shim.events()} == {"rank1", "0/2"}


def test_cryptographic_libraries_get_real_bytes_that_are_not_recorded(shim: Shim) -> None:
    script = "import ssl, os; print(ssl.RAND_bytes(32).hex()); print(os.urandom(16).hex())"
    recorded = lines(shim.record([sys.executable, "-c", script]).stdout)
    replayed = lines(shim.replay([sys.executable, "-c", script]).stdout)
    assert replayed[0] != recorded[0]
    assert replayed[1] == recorded[1]
    withheld = [event for _, event in shim.events() if event.withheld]
    assert withheld
    assert all("libcrypto" in event.module and event.data == b"" for event in withheld)


def by_thread(output: bytes) -> dict[bytes, list[bytes]]:
    """What each thread of threads.c was given."""
    given: dict[bytes, list[bytes]] = {}
    for line in output.splitlines():
        number, data = line.split()
        given.setdefault(number, []).append(data)
    return given


@pytest.mark.parametrize("end", [["kill"], []], ids=["killed", "ended"])
@pytest.mark.parametrize("before", [["create", "3"], ["fork", "create", "3"]], ids=["command", "child"])
def test_a_thread_that_lives_keeps_its_events_when_others_outrun_the_recording(
    before: list[str], end: list[str], shim: Shim, build: Callable[..., str]
) -> None:
    program = build("threads.c")
    recorded = by_thread(shim.record([program, *before, "1:3", "2:2", "3:5", *end]).stdout)
    assert [len(each) for each in recorded.values()] == [3, 2, 5]
    # The fourth was never recorded; the others exist, but have not asked yet.
    again = by_thread(shim.replay([program, *before, "4:4", "1:9", "2:9", "3:9"]).stdout)
    assert {number: again[number][: len(each)] for number, each in recorded.items()} == recorded
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.moved, fidelity.derived, fidelity.unused) == (10, 0, 21, 0)


def test_a_thread_that_was_never_recorded_goes_on_with_those_that_do_not_exist(
    shim: Shim, build: Callable[..., str]
) -> None:
    """Threads of pools have other names where it varies who creates them; of a killed recording more may come."""
    program = build("threads.c")
    recorded = by_thread(shim.record([program, "1:0", "2:3"]).stdout)
    again = by_thread(shim.replay([program, "1:2", "2:2"]).stdout)
    assert again == {b"1": recorded[b"2"][:2], b"2": [recorded[b"2"][2], again[b"2"][1]]}
    assert (shim.fidelity().moved, shim.fidelity().derived) == (2, 1)
    killed = by_thread(shim.record([program, "1:0", "2:3", "kill"]).stdout)
    assert by_thread(shim.replay([program, "1:2", "2:3"]).stdout)[b"2"] == killed[b"2"]
    assert (shim.fidelity().moved, shim.fidelity().derived) == (0, 2)


def test_a_strict_replay_gives_threads_of_a_pool_what_each_other_asked_for(
    shim: Shim, build: Callable[..., str]
) -> None:
    program = build("threads.c")
    recorded = by_thread(shim.record([program, "create", "3", "1:1", "2:1", "3:2"]).stdout)
    again = by_thread(shim.replay([program, "create", "3", "1:2", "3:2"], policy="strict").stdout)
    assert again == {b"1": recorded[b"1"] + recorded[b"2"], b"3": recorded[b"3"]}
    assert (shim.fidelity().exact, shim.fidelity().moved) == (3, 1)
    shim.record([program, "create", "3", "1:1", "2:1", "3:2", "kill"])
    assert shim.replay([program, "create", "3", "1:2", "3:2"], policy="strict").returncode == 125
