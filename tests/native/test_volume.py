"""Very many processes, threads and requests: replayed exactly, and counted exactly."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from reprokit import entropy
from reprokit.model.run import ProfileFacts
from tests.native.harness import Shim

pytestmark = pytest.mark.slow

MILLION = 1_000_000


def replayed_exactly(shim: Shim, command: list[str], requests: int) -> ProfileFacts:
    recorded = shim.record(command)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    facts = entropy.summarize(shim.entropy("recorded"))
    replayed = shim.replay(command, policy="strict")
    assert (replayed.returncode, replayed.stderr) == (0, b"")
    assert sorted(replayed.stdout.splitlines()) == sorted(recorded.stdout.splitlines())
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.requests, fidelity.unused) == (requests, requests, 0)
    assert facts.events == requests
    return facts


def test_a_thousand_processes_of_eight_threads(shim: Shim, build: Callable[..., str]) -> None:
    facts = replayed_exactly(shim, [build("volume.c"), "processes", "1000"], 8000)
    assert facts.processes == 1001  # and the one that makes them
    assert facts.files == 2 + 1001  # the pool, the list of children, and what goes on where a slot was full
    assert (facts.threads, facts.entropy) == (8000, 8000 * 16)


def test_ten_million_requests_of_one_thread(shim: Shim, build: Callable[..., str]) -> None:
    facts = replayed_exactly(shim, [build("volume.c"), "requests", str(10 * MILLION)], 10 * MILLION)
    assert (facts.threads, facts.entropy) == (1, 80 * MILLION)
    assert facts.size < 10 * MILLION * (8 + 5.1) + (4 << 20)  # a tag and a check for each; the last window


def test_a_million_single_bytes_of_a_stream(shim: Shim, build: Callable[..., str]) -> None:
    facts = replayed_exactly(shim, [build("volume.c"), "bytes", str(MILLION)], MILLION)
    assert facts.entropy == MILLION
    assert facts.size <= 8 * MILLION


def test_blocks_lie_where_a_replay_copies_them_fast(shim: Shim, build: Callable[..., str]) -> None:
    """Copying to a place less than 64 bytes further into its page takes five times as long (4K aliasing)."""
    command = [build("volume.c"), "blocks", "256"]
    replayed_exactly(shim, command, 256)
    (file,) = shim.entropy("recorded").iterdir()
    data = file.read_bytes()
    for line in shim.replay(command, policy="strict").stdout.splitlines():
        place, start = line.split()
        offset = data.index(bytes.fromhex(start.decode()))
        assert (int(place) - offset) % 4096 > 2048  # a little less far


@pytest.mark.slow
@pytest.mark.tf114
def test_the_seeds_of_numpy_before_1_17(shim: Shim) -> None:
    """NumPy 1.16 reads the 2496 bytes of a seed from a stream of /dev/urandom."""
    script = "import numpy; print([numpy.random.RandomState().rand() for _ in range(100)])"
    command = [os.environ["REPROKIT_TF114_PYTHON"], "-c", script]
    recorded = shim.record(command)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert shim.replay(command, policy="strict").stdout == recorded.stdout
    given = sum(event.given for _, event in shim.events() if event.source == "stream")
    assert given >= 100 * 2496
    assert entropy.summarize(shim.entropy("recorded")).size <= 100 * 2496 * 8
