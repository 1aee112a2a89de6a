"""What is digested of the results of collectives, and how many calls have a line of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest

from reprokit.agent.core import collectives
from reprokit.agent.core.collectives import CollectiveLog, bytes_of, digest_of, object_digest_of


class FakeJournal:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, kind: str, line: dict[str, Any]) -> None:
        assert kind == "collective"
        self.lines.append(line)

    def write_text(self, kind: str, text: str) -> None:
        self.write(kind, json.loads(f"{{{text[1:]}}}"))


class FakeAgent:
    def __init__(self) -> None:
        self.journal = FakeJournal()


def test_every_byte_of_a_large_result_has_its_turn() -> None:
    data = bytearray(256 << 10)
    data[200_001] = 1
    plain = bytes(len(data))
    seen = [digest_of(data, call) != digest_of(plain, call) for call in range(len(data) // 8 // 512)]
    assert sum(seen) == 1
    assert digest_of(bytes(100), 0)[1] is True
    assert digest_of(plain, 0)[1] is False


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_in_any_order(order: Any) -> None:
    array = numpy.arange(6.0).reshape(2, 3)
    assert bytes(bytes_of(numpy.asarray(array, order=order))) == array.tobytes()
    assert bytes_of(numpy.empty((0, 3))) == b""


def test_objects_that_are_pickled() -> None:
    value = {"loss": 0.5, "counts": [1, 2, (None, "x")], "array": numpy.arange(3.0), "one": numpy.float32(1)}
    assert object_digest_of(value) == object_digest_of({**value, "array": numpy.arange(3.0)}) is not None
    assert object_digest_of(value) != object_digest_of({**value, "array": numpy.arange(3)})
    assert object_digest_of([1]) != object_digest_of([True])
    for unreadable in (object(), [object()], {1, 2}, numpy.array([object()]), list(range(100_000))):
        assert object_digest_of(unreadable) is None
    nested: list[Any] = []
    nested.append(nested)
    assert object_digest_of(nested) is None


def test_many_calls_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "SINGLE", 3)
    monkeypatch.setattr(collectives, "TOGETHER", 4)

    def lines(*changed: int) -> list[dict[str, Any]]:
        agent: Any = FakeAgent()
        log = CollectiveLog(agent, "mpi")
        for call in range(10):
            log.note("Allreduce", 2, "float64", (1,), bytes([call in changed]) * 8)
        log.finish()
        written: list[dict[str, Any]] = agent.journal.lines
        return written

    assert [(line["step"], line["calls"]) for line in lines()] == [(0, 1), (1, 1), (2, 1), (6, 4), (9, 3)]
    assert [one == other for one, other in zip(lines(), lines(5), strict=True)] == [True, True, True, False, True]
