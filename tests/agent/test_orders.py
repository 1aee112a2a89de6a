"""Tracks as they are written and read, and what hostile ones come to."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from reprokit.agent.orders import turns, waits
from reprokit.agent.orders.actors import Actors
from reprokit.agent.orders.loops import LoopWakeUps
from reprokit.agent.orders.private_api import SEEN
from reprokit.agent.orders.recording import RecordedTracks, packed, unpacked
from reprokit.agent.orders.tracks import Orders
from reprokit.agent.orders.turns import Choices
from reprokit.run.orders import MAX_SIZE, OrdersByProcess
from tests.interpreters import available
from tests.support import wait_until


@pytest.mark.parametrize("actors", [2, 300])
def test_turns_come_back_as_they_were(actors: int) -> None:
    names = [f"m.{number}" for number in range(actors + 5)]
    sequence = array("H", [number * 7 % actors + 3 for number in range(1000)])
    used, text, count = packed(sequence, names)
    assert unpacked(used, text, count) == [names[code] for code in sequence]
    for wrong in count - 1, count + 1, 1 << 14:
        with pytest.raises(ValueError, match="another number"):
            unpacked(used, text, wrong)


def test_threads_that_come_at_once_have_codes_of_their_own() -> None:
    actors = Actors()

    class Switching(dict[str, int]):
        """Where threads change in the midst."""

        def setdefault(self, name: str, code: int) -> int:
            found = super().setdefault(name, code)
            if name == "m.1":
                actors.code("m.2")
            return found

    actors._codes = Switching(actors._codes)
    assert [actors.names[actors.code(name)] for name in ("m.1", "m.2", "m.3")] == ["m.1", "m.2", "m.3"]


def test_a_finalizer_that_comes_while_its_thread_is_named_has_a_name() -> None:
    found: list[tuple[str, str]] = []

    class Amidst(Actors):
        def code(self, name: str) -> int:
            if hasattr(self, "current"):
                found.append((self.current.name, self.names[self.current.put]))
            return super().code(name)

    actors = Amidst()
    threading.Thread(target=lambda: found.append((actors.current.name, actors.names[actors.current.put]))).start()
    wait_until(lambda: found and found[-1][0] != "?" and found[-1][1] != "?+", "the name of a thread")
    assert found[0][1] == "?+"


def order_line(**fields: object) -> bytes:
    actors, turns, count = packed(array("H", [0, 1, 0]), ["m", "m.1"])
    line = {"k": "order", "p": "0", "n": 1, "t": 0.0, "track": "a", "actors": actors, "turns": turns, "count": count}
    return json.dumps({**line, **fields}, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 0},
        {"count": 1 << 40},
        {"turns": "\n]"},
        {"turns": "A" * (1 << 18)},
        {"actors": [1]},
        {"track": "a" * 2000},
    ],
)
def test_lines_that_no_agent_writes_are_damage(fields: dict[str, object]) -> None:
    orders = OrdersByProcess()
    orders.take(order_line(**fields))
    assert orders.damaged == 1
    assert list(orders.lines(())) == [b"0.0\n"]


def test_too_many_lines_are_left_out_from_there_on() -> None:
    orders = OrdersByProcess()
    long = order_line(actors=["m" * 1000] * 1000)
    for _ in range(MAX_SIZE // len(long) + 2):
        orders.take(long)
    left_out = orders.left_out
    orders.take(order_line())
    assert orders.left_out == left_out + 1
    assert sum(map(len, orders.lines(()))) <= MAX_SIZE


def test_each_process_reads_its_own_lines(tmp_path: Path) -> None:
    orders = OrdersByProcess()
    for fields in ({}, {}, {"p": "0/1", "actors": ["x", "y"]}, {"p": "0/2"}):
        orders.take(order_line(**fields))
    (tmp_path / "orders.jsonl").write_bytes(b"".join(orders.lines({"0/2"})))
    assert RecordedTracks(str(tmp_path)).take("0", "a") == ["m", "m.1", "m"] * 2
    assert RecordedTracks(str(tmp_path)).take("0/1", "a") == ["x", "y", "x"]
    assert RecordedTracks(str(tmp_path)).take("0/2", "a") is None
    assert RecordedTracks(str(tmp_path)).unused("0") == 6
    assert not RecordedTracks(str(tmp_path / "none")).exist


class AlteredChoices(Choices):
    """A recording's wake-ups that no agent has written."""

    def __init__(self, texts: list[str]) -> None:
        self.is_replay = True
        self.name = "loop"
        self._texts = texts

    def next(self) -> str | None:
        return self._texts.pop(0) if self._texts else None

    def give_up(self, *, is_last_due: bool = True, is_known: bool = False) -> None:
        self._texts = []


@pytest.mark.parametrize(
    "texts",
    [
        ["timer 2", "timer -1"],
        ["timer x", "timer"],
        ["timer --5", "m --5", ""],
        ["timer \u00b2", "timer -", "timer 1 1"],
        ["timer " + "9" * 900, "timer -" + "9" * 900],
        ["m.1 0", "more"],
    ],
)
def test_altered_wake_ups_lose_no_timer(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "GRACE", 0.0)
    loop, executed = asyncio.SelectorEventLoop(), list[int]()
    orders = Orders(str(tmp_path), SimpleNamespace(identity="0", write=print), print)  # type: ignore[arg-type]
    orders.waits.given_up = 1
    wake_ups = LoopWakeUps(orders, AlteredChoices(texts), AlteredChoices(texts[:]), asyncio.SelectorEventLoop.call_at)
    for number in range(3):
        wake_ups.order_timer(loop.call_later(number / 1000, executed.append, number), loop)
    end = loop.call_later(0.8, loop.stop)
    loop.run_forever()
    assert not end.cancelled()
    assert sorted(executed) == [0, 1, 2]
    loop.close()


@pytest.mark.parametrize("text", ["--5", "\u00b2", "-", "x", ""])
def test_altered_numbers_are_unknown(text: str) -> None:
    assert (turns.number_of(text), turns.number_of("-5")) == (None, -5)


@pytest.mark.parametrize("version", sorted(available()))
def test_this_python_has_every_private_name_that_is_used(version: str) -> None:
    code = "import importlib, operator, sys\nfor path in sys.argv[1:]:\n    module, names = path.split(':')\n"
    code += "    operator.attrgetter(names)(importlib.import_module(module))"
    is_own = available()[version] == sys.executable
    paths = [place(path) for path in SEEN if is_own or path.partition(".")[0] not in ("dask", "distributed", "joblib")]
    if tuple(map(int, version.split("."))) < (3, 11):
        paths = [path for path in paths if not path.startswith("asyncio.timeouts:")]
    subprocess.run([available()[version], "-c", code, *paths], check=True)


def place(path: str) -> str:
    """A dotted path with a colon between the module and the names in it."""
    parts = path.split(".")
    count = next((number for number, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
    return ".".join(parts[:count]) + ":" + ".".join(parts[count:])
