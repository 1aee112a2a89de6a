"""Reads the operator logs that the agents of a replay wrote to answers/ (docs/format.md)."""

from __future__ import annotations

import linecache
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.bounds import bounded_names
from reprokit.core.errors import RunDamaged, reason
from reprokit.run_files.rundir import ANSWERS, RunDirectory

FORMAT = 1
NOT_LOGGED = "operators-not-logged"  # code of the agent's warning that it logs none of a framework
CALL = struct.Struct("<IIHHIQQ")
NAMES, CALLS = ".names", ".calls"
NO_OUTPUTS, DRAWS, UNREAD = 1, 2, 4  # flags of a call
MAX_NAMES = 256 << 20  # bytes of the names of a process
MAX_CALLS = CALL.size << 20  # bytes of its calls


class CallPlace(msgspec.Struct, frozen=True):
    """The user's line that made a call; for a backward pass, the line of the forward operator."""

    phase: str  # "forward", "backward", "update"
    node: str  # of the autograd or TensorFlow graph
    where: tuple[tuple[str, int, str], ...]  # (file, line, function), innermost first

    def is_same(self, other: CallPlace) -> bool:
        """Return whether this is the same place: the same lines, or lines with the same text in two versions."""
        if self == other:
            return True
        kinds = (self.phase, self.node, len(self.where)) == (other.phase, other.node, len(other.where))
        return kinds and self.texts == other.texts and all(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each line, as it is now; empty where it cannot be read."""
        return tuple(linecache.getline(file, line).strip() for file, line, _ in self.where)


class CalledOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator, with the properties of its inputs."""

    framework: str
    version: str
    name: str
    overload: str
    device: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, object] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """The properties that two calls must share to be compared."""
        return self.name, self.overload, self.dtypes, self.shapes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One logged call."""

    operator: CalledOperator
    place: CallPlace
    flags: int
    step: int
    inputs: int  # digests
    outputs: int
    number: int  # index in the log of its process

    def is_same(self, other: OperatorCall) -> bool:
        """Return whether two runs make this call at the same place: by its line's text, wherever that line is now.

        A line that was edited may still have calls that do the same.
        """
        if self.operator.key != other.operator.key or self.step != other.step:
            return False
        return self.place.is_same(other.place) or (
            self.place.node == other.place.node and (self.inputs, self.outputs) == (other.inputs, other.outputs)
        )


@dataclass(frozen=True)
class ProcessLog:
    """The calls of one process, by thread."""

    identity: str
    stem: str  # of its files
    threads: Mapping[str, list[OperatorCall]] = field(default_factory=dict)


def read(run: RunDirectory) -> dict[str, ProcessLog]:
    """Return a replay's logs by process identity; "#2" and so on is appended to a repeated identity."""
    directory, logs = run.path / ANSWERS, {}
    for name in bounded_names(directory, NAMES):
        log = _read(run, name.removesuffix(NAMES))
        identity, number = log.identity, 1
        while identity in logs:
            number += 1
            identity = f"{log.identity}#{number}"
        logs[identity] = log
    return logs


def _read(run: RunDirectory, stem: str) -> ProcessLog:
    path = os.path.join(ANSWERS, stem)
    try:
        identity, tables = _tables(run.read(path + NAMES, MAX_NAMES).splitlines())
        data = run.read(path + CALLS, MAX_CALLS) if run.has(path + CALLS) else b""
        threads: dict[str, list[OperatorCall]] = {}
        for thread, call in _calls(data, tables):
            threads.setdefault(thread, []).append(call)
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise RunDamaged(f"{run.path / path}{NAMES}: {reason(error)}; the log cannot be used") from None
    return ProcessLog(identity, stem, threads)


@dataclass(frozen=True)
class _NameTables:
    operators: dict[int, CalledOperator]
    places: dict[int, CallPlace]
    threads: dict[int, str]


def _tables(lines: list[bytes]) -> tuple[str, _NameTables]:
    tables = _NameTables({}, {}, {})
    head = _object(lines[0]) if lines else {}
    if head.get("kind") != "process" or head.get("format") != FORMAT:
        raise ValueError("not a log of operators that this reprokit reads")
    for line in lines[1:]:
        content = _object(line)
        number = msgspec.convert(content.pop("number"), int)
        kind = content.pop("kind")
        if kind == "operator":
            tables.operators[number] = msgspec.convert(content, CalledOperator)
        elif kind == "place":
            tables.places[number] = msgspec.convert(content, CallPlace)
        elif kind == "thread":
            tables.threads[number & 0xFFFF] = msgspec.convert(content["name"], str)
    return msgspec.convert(head["identity"], str), tables


def _object(line: bytes) -> dict[str, Any]:
    return msgspec.convert(untrusted_json.loads(line), dict[str, Any])


def _calls(data: bytes, tables: _NameTables) -> Iterator[tuple[str, OperatorCall]]:
    whole = memoryview(data)[: len(data) // CALL.size * CALL.size]  # a killed process leaves a partial record
    for position, (operator, place, thread, flags, step, inputs, outputs) in enumerate(CALL.iter_unpack(whole)):
        name, where = tables.operators[operator], tables.places[place]
        yield tables.threads[thread], OperatorCall(name, where, flags, step, inputs, outputs, position)
