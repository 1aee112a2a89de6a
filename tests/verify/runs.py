"""Builds run directories through the structs that the launcher writes, without running anything."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy

from reprokit.model.outputs import OutputFile, OutputLink, OutputsFile
from reprokit.model.run import FINISHED, Fidelity, ProfileFacts, ReplayOf, RunFile
from reprokit.model.states import LOADED, ON, Switch
from reprokit.run_files import console, rundir, trails
from reprokit.run_files import ledgers as sample_ledgers
from reprokit.run_files import numbers as number_records
from reprokit.run_files.console import ConsoleHead, PrintedPiece, ProcessConsole
from reprokit.run_files.rundir import write_json
from tests import sample_ledgers as ledger_files
from tests.trails import Table, list_digest
from tests.trails import write as write_trail

from .profiles import Writing


def digest(text: str) -> str:
    """A digest of something, told apart by its text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def float32(number: float) -> dict[str, Any]:
    """The VALUE of a float32."""
    bits = struct.pack(">f", number)
    finite = number - number == 0
    return {"dtype": "float32", "bits": bits.hex(), "decimal": struct.unpack(">f", bits)[0] if finite else None}


def rows_digest(array: Any) -> str:
    """The digest of predictions, computed from the definition and by other means than the agent's."""
    dtype = array.dtype.str[1:] if array.dtype.kind == "U" else array.dtype.name
    head = "\0".join(["reprokit-rows-1", dtype, ",".join(map(str, array.shape[1:])), ""])
    return "sha256:" + hashlib.sha256(head.encode() + array.tobytes(order="C")).hexdigest()


def tensor(name: str, text: str) -> list[Any]:
    """One tensor of a line of kind weights."""
    return [name, "float32", [10, 64], digest(text)]


EVENTS, ENTROPY = 9, 99
PROFILE_NAME = "0.entropy"
PROFILE_CONTENT = Writing(matches=(EVENTS, 0, 0, 0), given=(ENTROPY, 0, 0, 0)).content()
_SEALED = PROFILE_NAME.encode() + b"\0" + len(PROFILE_CONTENT).to_bytes(8, "little") + PROFILE_CONTENT
PROFILE = "sha256:" + hashlib.sha256(b"reprokit-profile-1\0" + _SEALED).hexdigest()


@dataclass
class Building:
    """A run directory in the making: change what a test is about, then write it."""

    path: Path
    run: RunFile
    lines: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[OutputFile] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=lambda: {"format": 1, "host": "here", "cpu": {"model": "Z80"}})
    numbers: dict[str, int] = field(default_factory=dict)
    columns: dict[str, bytes] = field(default_factory=dict)  # files of evaluation
    tables: dict[str, list[Table]] = field(default_factory=dict)  # of the trails, by process
    printed: dict[str, list[PrintedPiece]] = field(default_factory=dict)  # by process
    ledgers: dict[str, bytes] = field(default_factory=dict)  # files of samples
    links: list[OutputLink] = field(default_factory=list)
    records: dict[str, bytes] = field(default_factory=dict)  # files of numbers

    @property
    def began(self) -> float:
        """No two runs write lines at the same times."""
        return 1_700_000_000.5 + zlib.crc32(bytes(self.path)) % 1_000_000

    def add(self, kind: str, process: str = "0", **keys: Any) -> dict[str, Any]:
        """Append a line of metrics.jsonl, numbered within its process."""
        number = self.numbers.get(process, 0)
        self.numbers[process] = number + 1
        line = {"k": kind, "p": process, "n": number, "t": self.began + len(self.lines), **keys}
        self.lines.append(line)
        return line

    def start(self, process: str = "0", pid: int = 4711) -> None:
        """The line of a Python process that starts."""
        facts = {"python": "3.11.4", "implementation": "CPython", "executable": "/usr/bin/python", "agent": 1}
        self.add("agent", process, argv=["train.py"], pid=pid, **facts)

    def losses(self, *numbers: float, process: str = "0") -> None:
        """Losses of the steps from 0 on."""
        for step, number in enumerate(numbers):
            self.add("loss", process, name="loss", step=step, value=float32(number))

    def column(self, array: Any) -> dict[str, Any]:
        """Keep predictions or true values in a file of their own."""
        name, file = f"{0:016x}-{len(self.columns)}.npy", BytesIO()
        numpy.save(file, array)
        self.columns[name] = file.getvalue()
        dtype = array.dtype.str[1:] if array.dtype.kind == "U" else array.dtype.name
        return {"dtype": dtype, "shape": list(array.shape), "digest": rows_digest(array), "file": name, "row": 0}

    def predictions(self, name: str, pred: Any, truth: Any = None, **keys: Any) -> dict[str, Any]:
        """A line of kind evaluation."""
        facts = {"calls": 1, "task": "classification", "form": "labels", "why": "given", **keys}
        facts["predictions"] = self.column(numpy.asarray(pred))
        if truth is not None:
            facts["truth"] = self.column(numpy.asarray(truth))
        return self.add("evaluation", name=name, **facts)

    def write(self, *, sealed: bool = True) -> Path:
        """Write the directory."""
        self.path.mkdir(exist_ok=True)
        if self.lines:
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            (self.path / rundir.METRICS).write_text(text)
            self.run.metrics = rundir.seal_file(self.path / rundir.METRICS) if sealed else None
        if self.run.profile is not None and self.run.profile.digest == PROFILE:
            (self.path / rundir.ENTROPY).mkdir()
            (self.path / rundir.ENTROPY / PROFILE_NAME).write_bytes(PROFILE_CONTENT)
        for process, tables in self.tables.items():
            write_trail(self.path / rundir.TRAIL, tables, process)
        if self.tables:
            self.run.trail = self.run.trail or ON
            self.run.trails = trails.seal(self.path / rundir.TRAIL) if sealed else None
        if self.records:
            (self.path / rundir.NUMBERS).mkdir(mode=0o700, exist_ok=True)
            for name, content in self.records.items():
                (self.path / rundir.NUMBERS / name).write_bytes(content)
            self.run.numbers = number_records.seal(self.path / rundir.NUMBERS) if sealed else None
        if self.ledgers:
            (self.path / rundir.SAMPLES).mkdir(mode=0o700)
            for name, content in self.ledgers.items():
                (self.path / rundir.SAMPLES / name).write_bytes(content)
            self.run.samples = sample_ledgers.seal(self.path / rundir.SAMPLES) if sealed else None
        if self.columns:
            (self.path / rundir.EVALUATION).mkdir()
            for name, content in self.columns.items():
                (self.path / rundir.EVALUATION / name).write_bytes(content)
        if self.printed:
            self.write_console()
        if self.environment:
            write_json(self.path / rundir.ENVIRONMENT, self.environment)
        write_json(self.path / rundir.OUTPUTS, OutputsFile(files=self.outputs, links=self.links))
        write_json(self.path / rundir.RUN, self.run)
        return self.path

    def write_console(self) -> None:
        """The files of what was printed, and their seal."""
        (self.path / rundir.CONSOLE).mkdir(mode=0o700, exist_ok=True)
        for number, (process, pieces) in enumerate(self.printed.items()):
            head = ConsoleHead(f"{number:016x}-0.console", process.encode(), 0, 100 + number, 0, [], 0, 0)
            data = console.encode(head, ProcessConsole(pieces))
            (self.path / rundir.CONSOLE / head.file).write_bytes(data)
        self.run.console = rundir.seal_console(self.path)


def recording(path: Path) -> Building:
    """A finished recording with nothing in it yet."""
    run = RunFile(
        run_id=f"id-{path.name}",
        kind="record",
        reprokit="0.1",
        command=["python", "train.py", "--rate", "0.1"],
        working_directory="/home/somebody/project",
        variables={"OMP_NUM_THREADS": "2"},
        status=FINISHED,
        exit_code=0,
        started="2026-01-02T03:04:05Z",
        ended="2026-01-02T03:04:15Z",
        duration=10.25,
        host="here",
        address_randomization=Switch(state="off"),
        environment_size=16384,
        shim=LOADED,
        agent=LOADED,
        profile=ProfileFacts(
            digest=PROFILE,
            files=1,
            size=len(PROFILE_CONTENT),
            processes=2,
            threads=3,
            events=EVENTS,
            entropy=ENTROPY,
        ),
    )
    return Building(path, run)


def replayed(building: Building, path: Path, fidelity: Fidelity | None = None) -> Building:
    """A faithful replay of a recording, with lines and outputs of its own to change."""
    facts = json.loads(json.dumps(building.lines))
    for line in facts:
        line["t"] += Building(path, building.run).began - building.began
    copy = Building(path, recording(path).run, facts, list(building.outputs), dict(building.environment))
    assert building.run.profile is not None
    origin = ReplayOf(path=str(building.path), run_id=building.run.run_id, profile_digest=building.run.profile.digest)
    copy.run.kind, copy.run.profile, copy.run.replay_of = "replay", None, origin
    copy.run.fidelity = fidelity or Fidelity(exact=9, exact_bytes=99)
    copy.run.started, copy.run.ended, copy.run.duration = "2026-01-03T00:00:00Z", "2026-01-03T00:00:11Z", 11.5
    copy.numbers, copy.columns = dict(building.numbers), dict(building.columns)
    copy.tables, copy.printed = deepcopy(building.tables), deepcopy(building.printed)
    copy.ledgers, copy.records = dict(building.ledgers), dict(building.records)
    return copy


def kept_tensors(number: int, count: int) -> tuple[list[int], list[int]]:
    """Digests of the gradients and the parameters of a step."""
    gradients, parameters = ([1000 * number + 100 * part + place for place in range(count)] for part in (1, 2))
    return gradients, parameters


def trail(count: int, names: Sequence[str] = ("fc.weight", "fc.bias"), name: str = "optimizer#0") -> Table:
    """A series of which everything is known, with the digests of the tensors of the first and the last steps."""
    of_tensors = [kept_tensors(number, len(names)) for number in range(count)]
    known = ("batch", "torch", "python", "numpy", "loss")
    steps = [
        {
            **{quantity: 1000 * number + place for place, quantity in enumerate(known, 1)},
            "gradients": list_digest(gradients),
            "parameters": list_digest(parameters),
        }
        for number, (gradients, parameters) in enumerate(of_tensors)
    ]
    ends = {*range(min(16, count)), *range(max(0, count - 16), count)}
    tensors = [(tensor, "float32", [10, 64]) for tensor in names]
    return Table(name, steps, tensors, {number: of_tensors[number] for number in ends})


def training(path: Path) -> Building:
    """A recording with a line of every kind that decides, in two processes, and two outputs."""
    run = recording(path)
    run.start()
    run.add("framework", name="torch", version="2.13.0")
    run.add("seed", call="random.seed", argument="7", where="train.py:3", value=7)
    run.start("0/1", pid=4712)
    run.losses(0.75, 0.5, 0.25)
    run.add("random_state", "0/1", name="random", digest=digest("worker state"))
    run.add("end", "0/1")
    run.add("log", name="rate", step=1, epoch=None, value={"dtype": "int", "decimal": 3})
    run.add("epoch", name="loader#0", epoch=0, values={"loss": float32(0.5)}, steps=3)
    run.add("weights", at="epoch", epoch=0, object="model#0", **{"class": "Net"}, digest=digest("weights 0"))
    run.add("history", name="fit#0", values={"loss": [float32(0.5), float32(0.125)]})
    run.add("evaluate", name="evaluate#0", values={"accuracy": float32(0.875)})
    run.add("predict", name="predict#0", digest=digest("predictions"), shape=[2, 10], dtype="float32")
    classes = [["0", 1, 2], ["1", 1, 1]]
    run.predictions("classification metrics", [0, 1, 1], [0, 0, 1], accuracy=[2, 3], classes=classes)
    tensors = [tensor("fc.bias", "bias"), tensor("fc.weight", "weight")]
    end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#0", "class": "Net"}
    run.add("weights", **end, digest=digest("weights 1"), tensors=tensors)
    run.tables["0"] = [trail(3)]
    run.ledgers[f"{ledger_files.NAME}.samples"] = ledger_files.ledger([0, 1], [2, 3], [4, 5])
    run.printed["0"] = [PrintedPiece(0, "m", b"loss 0.75\nloss 0.5\n")]
    run.add("optimizer", object="optimizer#0", **{"class": "SGD"}, steps=3)
    run.add("random_state", name="random", digest=digest("state"))
    run.add("end")
    run.outputs += [
        OutputFile(path="model.pt", size=640, digest=digest("model.pt"), content=digest("model"), container="zip"),
        OutputFile(path="log.txt", size=3, digest=digest("log")),
    ]
    return run
