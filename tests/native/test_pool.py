"""Forked processes share a file, the pool: each has a slot of it, and nothing of the others'."""

from __future__ import annotations

import os
import resource
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit import entropy
from reprokit.core import native
from reprokit.core.errors import RunDamaged, RunError, RunTooNew
from reprokit.entropy import pool
from reprokit.entropy.files import EntropyEvent
from reprokit.model.plan import key_of_seed
from tests.native.harness import Shim, run
from tests.native.test_survival import small_disk  # noqa: F401

KEYED: dict[str, Any] = {"keyed": True}
HEAD = 552


@pytest.fixture
def forks(build: Callable[..., str]) -> str:
    return build("forks.c")


def lines(done: subprocess.CompletedProcess[bytes]) -> dict[int, str]:
    assert done.returncode == 0, done.stderr
    return {int(number): given for number, given in map(str.split, done.stdout.decode().splitlines())}


def given(shim: Shim, name: str = "recorded") -> dict[str, str]:
    """The bytes that each process was given, by its identity."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for identity, record in shim.events(name):
        found[identity].append(record.data.hex() if isinstance(record, EntropyEvent) else "")
    return {identity: "".join(pieces) for identity, pieces in found.items()}


def files(shim: Shim, name: str = "recorded") -> set[str]:
    return {path.name for path in entropy.entropy_files(shim.entropy(name))}


def holds(shim: Shim, command: list[str]) -> dict[int, str]:
    """Recorded and replayed exactly, and each line is what the recording says of that process."""
    recorded = lines(shim.record(command))
    assert len(set(recorded.values())) == len(recorded)
    assert lines(shim.replay(command, policy="strict")) == recorded
    fidelity = shim.fidelity()
    assert fidelity.exact == fidelity.requests
    assert fidelity.unused == 0
    entropy.check(shim.entropy("recorded"))
    entropy.check(shim.entropy("replayed"))
    return recorded


@pytest.mark.parametrize(("way", "count"), [("many", 300), ("beside", 200), ("long", 5), ("large", 5), ("vfork", 20)])
def test_forked_processes(way: str, count: int, shim: Shim, forks: str) -> None:
    recorded = holds(shim, [forks, way, str(count)])
    kept = given(shim)
    assert {number: kept[f"0/{number + 1}"] for number in recorded} == recorded
    has_rests = way in ("long", "large")
    assert sum(name.endswith(pool.REST) for name in files(shim)) == (count if has_rests else 0)
    assert len(files(shim)) == 2 + (count if has_rests else 0)  # the program's own, and the pool


def test_forks_of_threads(shim: Shim, forks: str) -> None:
    holds(shim, [forks, "threads", "20"])
    assert len(files(shim)) == 2


def test_forks_of_signal_handlers(shim: Shim, forks: str) -> None:
    """In the midst of requests, which the child ends too. When they come is not the same in a replay."""
    recorded = lines(shim.record([forks, "handler", "60"]))
    assert set(recorded.values()) <= set(given(shim).values())
    assert len(recorded) == 60
    assert len(lines(shim.replay([forks, "handler", "60"]))) == 60


@pytest.mark.slow
def test_more_than_a_level_has(shim: Shim, forks: str) -> None:
    holds(shim, [forks, "many", "2300"])
    assert len(files(shim)) == 2
    assert sum(1 for _ in entropy.processes(shim.entropy("recorded"))) == 2301


@pytest.mark.slow
def test_nothing_of_a_killed_process_is_lost(shim: Shim, forks: str) -> None:
    recorded, kept = lines(shim.record([forks, "killed", "141"])), given(shim)
    assert len(recorded) > 30
    assert all(kept[f"0/{number + 1}"].startswith(data) for number, data in recorded.items())
    entropy.check(shim.entropy("recorded"))


def test_keyed_runs(shim: Shim, forks: str) -> None:
    """The same bytes as where each has a file of its own."""
    command = [forks, "many", "20"]
    recorded = lines(shim.record(command, plan=KEYED))
    assert lines(shim.record(command, "again", plan=KEYED)) == recorded
    assert lines(shim.record(command, "other", plan={**KEYED, "key": key_of_seed("another")})) != recorded
    assert lines(shim.replay(command, policy="strict", plan=KEYED)) == recorded
    own = lines(shim.record(command, "own", plan=KEYED, preexec_fn=without_room))
    assert (own, len(files(shim, "own"))) == (recorded, 22)  # and the program's, and a pool without slots


def without_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))


def test_clock(shim: Shim, forks: str) -> None:
    plan = {"clock": True}
    recorded = lines(shim.record([forks, "many", "20"], plan=plan))
    assert lines(shim.replay([forks, "many", "20"], policy="strict", plan=plan)) == recorded


def test_where_the_pool_may_not_grow_each_has_a_file(shim: Shim, forks: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [forks, "many", "50"]
    recorded = lines(shim.record(command, preexec_fn=limit))
    assert 20 < len(files(shim)) < 50
    assert lines(shim.replay(command, policy="strict")) == recorded
    assert lines(shim.replay(command, "limited", policy="strict", preexec_fn=limit)) == recorded


def test_full_disk(small_disk: Path, forks: str) -> None:  # noqa: F811
    shim = Shim(small_disk)
    recorded = lines(shim.record([forks, "many", "100"]))
    assert len(recorded) == 100
    kept = given(shim)
    assert 10 < len(kept) < 90
    assert all(recorded[int(name[2:]) - 1] == data for name, data in kept.items() if "/" in name)
    assert any("disk was full" in why for why in entropy.gave_up(shim.entropy("recorded")))


def test_processes_of_one_name_have_numbers_of_their_own(shim: Shim, forks: str) -> None:
    """As where a rank is started again: forked children and spawned ones, in either order."""
    ways = ("many", "spawn", "many", "spawn", "spawn", "many")
    environment = shim.environment("recorded", "record", **KEYED)
    printed = [run([forks, way, "1"], environment).stdout.split()[-1] for way in ways]
    assert len(set(printed)) == len(ways)
    heads = [file.head for file in entropy.processes(shim.entropy("recorded")) if file.head.identity == "0/1"]
    assert sorted(head.incarnation for head in heads) == list(range(len(ways)))
    environment = shim.environment("replayed", "replay", profile="recorded", policy="strict", **KEYED)
    assert [run([forks, way, "1"], environment).stdout.split()[-1] for way in ways] == printed


def test_a_process_maps_no_slot_but_its_own(shim: Shim, forks: str) -> None:
    for done in (shim.record([forks, "mappings", "8"]), shim.replay([forks, "mappings", "8"])):
        mapped = [line for line in done.stdout.decode().splitlines() if "pool.entropy" in line]
        writable = Counter(line.split()[2] for line in mapped if line.split()[1] == "rw-s")
        assert sum(writable.values()) == len(writable) == 8
        for line in mapped:
            start, _, end = line.split()[0].partition("-")
            assert int(end, 16) - int(start, 16) == pool.SLOT


def test_a_recording_without_a_pool_is_replayed(shim: Shim, forks: str) -> None:
    """As those of before format 3: every process has a file."""
    command = [forks, "many", "20"]
    recorded = lines(shim.record(command))
    directory = shim.entropy("recorded")
    for file in list(entropy.processes(directory)):
        if file.path.name == pool.NAME:
            name = native.checker()(file.head.identity.encode(), 0)
            data = bytearray(file.slice(0, pool.SLOT))
            data[8:12] = (2).to_bytes(4, "little")
            data[544:552] = native.checker()(bytes(data[:544]), 0).to_bytes(8, "little")
            (directory / f"{name:016x}-0.entropy").write_bytes(data)
    (directory / pool.NAME).unlink()
    assert lines(shim.replay(command, policy="strict")) == recorded
    assert len(files(shim, "replayed")) == 2


# ---- damage ----------------------------------------------------------------------------------------------------------


def of_head(data: bytearray) -> None:
    data[20] = 1


def of_version(data: bytearray) -> None:
    data[8] = 5
    data[544:HEAD] = native.checker()(bytes(data[:544]), 0).to_bytes(8, "little")


def claims(data: bytearray) -> list[int]:
    """Where the table's claims lie that were given a slot."""
    return [at for at in range(pool.SLOT + 16, 2 * pool.SLOT, 16) if any(data[at + 8 : at + 16])]


def of_slot_number(data: bytearray) -> None:
    data[claims(data)[0] + 9] = 1


def of_one_slot_twice(data: bytearray) -> None:
    first, second, *_ = claims(data)
    data[second + 8 : second + 16] = data[first + 8 : first + 16]


def of_hash(data: bytearray) -> None:
    data[claims(data)[0]] ^= 1


def of_slot(data: bytearray) -> None:
    data[2 * pool.SLOT + 40] ^= 1


def of_record(data: bytearray) -> None:
    data[2 * pool.SLOT + 1024 + 60] ^= 1


def of_size(data: bytearray) -> None:
    del data[2 * pool.SLOT + 100 :]


def of_length(data: bytearray) -> None:
    del data[100:]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        *((change, RunDamaged) for change in (of_head, of_slot_number, of_one_slot_twice, of_hash, of_slot, of_record)),
        (of_size, RunDamaged),
        (of_length, RunDamaged),
        (of_version, RunTooNew),
    ],
)
def test_damage_is_one_clear_error(
    change: Callable[[bytearray], None], error: type[RunError], shim: Shim, forks: str
) -> None:
    """And a replay goes on without what it cannot read."""
    command = [forks, "many", "5"]
    lines(shim.record(command))
    path = shim.entropy("recorded") / pool.NAME
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    with pytest.raises(error, match=pool.NAME):
        entropy.check(shim.entropy("recorded"))
    assert len(lines(shim.replay(command))) == 5


def test_what_goes_on_where_nothing_began(shim: Shim, forks: str) -> None:
    lines(shim.record([forks, "many", "5"]))
    (shim.entropy("recorded") / f"{7:016x}-0{pool.REST}").write_bytes(b"")
    with pytest.raises(RunDamaged, match="no process began"):
        entropy.check(shim.entropy("recorded"))


def test_a_lost_rest_is_damage(shim: Shim, forks: str) -> None:
    lines(shim.record([forks, "long", "2"]))
    rest = next(path for path in entropy.entropy_files(shim.entropy("recorded")) if path.name.endswith(pool.REST))
    os.unlink(rest)
    with pytest.raises(RunDamaged, match="impossible counts"):
        entropy.check(shim.entropy("recorded"))
    assert len(lines(shim.replay([forks, "long", "2"]))) == 2
