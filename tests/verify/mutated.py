"""Changes one thing in the copy of a recorded run, and seals the run again as if that had been its result."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy

from reprokit.core.native import check_in_python
from reprokit.model.outputs import OutputsFile
from reprokit.run_files import numbers, rundir, trails
from reprokit.run_files.rundir import RunDirectory, write_json
from tests import number_files
from tests.trails import FIELDS, FLAGS
from tests.verify.runs import rows_digest

Line = dict[str, Any]
FLOATS = {"float32": (">I", ">f"), "float64": (">Q", ">d")}
RECORD = 8 + 8 * len(FIELDS)  # bytes of a step
BOOKKEEPING = {"k", "p", "n", "t"}


@dataclass
class Mutant:
    """A copy of a run, one change to it, and what verify should say: a category and, where it is known, a name."""

    path: Path
    chance: random.Random

    @property
    def metrics(self) -> Path:
        return self.path / rundir.METRICS

    def lines(self) -> list[Line]:
        """The lines, among which are those that stand for numbers."""
        lines, counts = number_files.of_run(self.path), Counter[str]()
        for line in lines:
            line.update(n=counts[line["p"]], t=line.get("t", 0))
            counts[line["p"]] += 1
        return lines

    def of(self, lines: list[Line], *kinds: str) -> list[Line]:
        return [line for line in lines if line["k"] in kinds]

    def choose(self, things: list[Any]) -> Any:
        return self.chance.choice(things)

    def write(self, lines: list[Line]) -> None:
        """Write all as lines: whether a number is a record makes no difference."""
        shutil.rmtree(self.path / rundir.NUMBERS, ignore_errors=True)
        self.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def seal(self, **changes: Any) -> None:
        """run.json as the launcher would have written it."""
        run = RunDirectory(self.path).run
        run.numbers = numbers.seal(self.path / rundir.NUMBERS)
        run.metrics, run.trails = rundir.seal_file(self.metrics), trails.seal(self.path / rundir.TRAIL)
        run.outputs = rundir.seal_file(self.path / rundir.OUTPUTS)
        run.evaluation = rundir.seal_evaluation(self.path)
        for key, value in changes.items():
            setattr(run, key, value)
        write_json(self.path / rundir.RUN, run)


Expected = tuple[str, str]
Mutation = Callable[[Mutant], Expected]


def ulp(value: Line, chance: random.Random) -> None:
    """The neighbor of a number, or another text or integer."""
    if value.get("bits") is None:
        value["decimal" if value.get("text") is None else "text"] = 4711 if value.get("text") is None else "other"
        return
    integer, number = FLOATS[value["dtype"]]
    bits = struct.unpack(integer, bytes.fromhex(value["bits"]))[0] + chance.choice([-1, 1])
    value["bits"] = struct.pack(integer, bits).hex()
    value["decimal"] = struct.unpack(number, bytes.fromhex(value["bits"]))[0]


def bit(value: Line, chance: random.Random) -> None:
    """One bit of a number; never one that makes it NaN or infinite."""
    integer, number = FLOATS[value["dtype"]]
    bits = struct.unpack(integer, bytes.fromhex(value["bits"]))[0] ^ 1 << chance.randrange(20)
    value["bits"] = struct.pack(integer, bits).hex()
    value["decimal"] = struct.unpack(number, bytes.fromhex(value["bits"]))[0]


def loss_by_an_ulp(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    ulp(mutant.choose(mutant.of(lines, "loss", "log"))["value"], mutant.chance)
    mutant.write(lines)
    mutant.seal()
    return "process metrics", ""


def bit_of_a_metric(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    values = [line["value"] for line in mutant.of(lines, "loss", "log")]
    bit(mutant.choose([value for value in values if value.get("bits")]), mutant.chance)
    mutant.write(lines)
    mutant.seal()
    return "process metrics", ""


def swap_of_two_steps(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    one, other = mutant.chance.sample([line for line in mutant.of(lines, "loss", "log") if line["name"] == "loss"], 2)
    one["value"], other["value"] = other["value"], one["value"]
    mutant.write(lines)
    mutant.seal()
    return "process metrics", "loss"


def renamed_metric(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    name = mutant.choose(sorted({line["name"] for line in mutant.of(lines, "loss", "log")}))
    for line in mutant.of(lines, "loss", "log"):
        line["name"] = "another" if line["name"] == name else line["name"]
    mutant.write(lines)
    mutant.seal()
    return "process metrics", ""


def missing_line(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    found = mutant.choose(mutant.of(lines, "loss", "log", "weights", "evaluation", "random_state", "seed"))
    lines.remove(found)
    for line in lines:
        line["n"] -= line["p"] == found["p"] and line["n"] > found["n"]
    mutant.write(lines)
    mutant.seal()
    return "", ""


def digest_of_a_tensor(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    tensor = mutant.choose([t for line in mutant.of(lines, "weights") for t in line.get("tensors") or []])
    tensor[3] = _other_digit(tensor[3], mutant.chance)
    mutant.write(lines)
    mutant.seal()
    return "weights", tensor[0]


def digest_of_weights_or_random_state(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    line = mutant.choose(mutant.of(lines, "weights", "random_state"))
    line["digest"] = _other_digit(line["digest"], mutant.chance)
    mutant.write(lines)
    mutant.seal()
    return ("weights" if line["k"] == "weights" else "random states"), ""


def seed(mutant: Mutant) -> Expected:
    lines = mutant.lines()
    line = mutant.choose(mutant.of(lines, "seed"))
    line["argument"] += "1"
    mutant.write(lines)
    mutant.seal()
    return "seeds", "seeds"


def _other_digit(digest: str, chance: random.Random) -> str:
    place = len("sha256:") + chance.randrange(64)
    return digest[:place] + f"{int(digest[place], 16) ^ 1 << chance.randrange(4):x}" + digest[place + 1 :]


def _change_rows(mutant: Mutant, change: Callable[[Any], None]) -> Expected:
    """Change the rows of a column of predictions, and what its line says of them."""
    lines = mutant.lines()
    line = mutant.choose([one for one in mutant.of(lines, "evaluation") if one["predictions"].get("file")])
    column = line["predictions"]
    path = mutant.path / rundir.EVALUATION / column["file"]
    rows = numpy.load(path)
    sharing = [one for one in mutant.of(lines, "evaluation") for side in ("predictions", "truth")
               if one.get(side, {}).get("file") == column["file"]]  # fmt: skip
    own = path if len(sharing) == 1 else path.with_name(f"{path.name[:16]}-999999.npy")
    before = rows.copy()
    change(rows[column["row"] : column["row"] + column["shape"][0]])
    if before.tobytes() == rows.tobytes():
        raise NothingToChangeError
    numpy.save(own, rows)
    column["file"], part = own.name, rows[column["row"] : column["row"] + column["shape"][0]]
    column["digest"] = rows_digest(part)
    mutant.write(lines)
    mutant.seal()
    return "evaluation metrics", ""


class NothingToChangeError(Exception):
    """The rows that were chosen are the same: another choice is needed."""


def bit_of_a_prediction(mutant: Mutant) -> Expected:
    def change(rows: Any) -> None:
        flat = rows.reshape(-1).view(numpy.uint8)
        flat[mutant.chance.randrange(flat.size)] ^= 1 << mutant.chance.randrange(8)

    return _change_rows(mutant, change)


def swap_of_two_predictions(mutant: Mutant) -> Expected:
    def change(rows: Any) -> None:
        one, other = mutant.chance.sample(range(len(rows)), 2)
        rows[[one, other]] = rows[[other, one]]

    return _change_rows(mutant, change)


def digest_of_an_output(mutant: Mutant) -> Expected:
    found = RunDirectory(mutant.path).outputs()
    assert found is not None
    index = mutant.chance.randrange(len(found.files))
    file = found.files[index]
    changes = {
        key: _other_digit(getattr(file, key), mutant.chance) for key in ("digest", "content") if getattr(file, key)
    }
    found.files[index] = msgspec.structs.replace(file, **changes, kept=None)  # its copy is of other bytes
    write_json(mutant.path / rundir.OUTPUTS, found)
    mutant.seal()
    return "outputs", file.path


def missing_output(mutant: Mutant) -> Expected:
    found = RunDirectory(mutant.path).outputs()
    assert found is not None
    index = mutant.chance.randrange(len(found.files))
    write_json(mutant.path / rundir.OUTPUTS, OutputsFile(files=found.files[:index] + found.files[index + 1 :]))
    mutant.seal()
    return "outputs", found.files[index].path


def other_end(mutant: Mutant) -> Expected:
    signal = mutant.choose([None, "SIGKILL", "SIGTERM"])
    mutant.seal(exit_code=None if signal else mutant.chance.randrange(1, 256), signal=signal)
    return "exit status", "status"


def missing_file(mutant: Mutant) -> Expected:
    """What a run leaves, without one of its files, and sealed so."""
    there = [name for name in (rundir.METRICS, rundir.TRAIL, rundir.OUTPUTS) if (mutant.path / name).exists()]
    name = mutant.choose(there)
    path = mutant.path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    mutant.seal()
    return {rundir.METRICS: "", rundir.TRAIL: "trail", rundir.OUTPUTS: "outputs"}[name], ""


# The trail


def _trail(mutant: Mutant) -> tuple[Path, bytearray]:
    path = mutant.choose(sorted((mutant.path / rundir.TRAIL).iterdir()))
    return path, bytearray(path.read_bytes())


def _chunks(data: bytearray) -> list[tuple[int, int, int, int, int, int]]:
    """Kind, offset of the content, first step, count, kept and length of the text."""
    found, at = [], 512
    (used,) = struct.unpack_from("<Q", data, 288)
    while at < used:
        _, kind, _, size, first, count, kept, length = struct.unpack_from("<IHHQQIIQ", data, at)
        found.append((kind, at + 64, first, count, kept, length))
        at += size
    return found


def _records(data: bytearray) -> list[tuple[int, int]]:
    """Number and offset of each step."""
    return [(first + index, offset + RECORD * index) for kind, offset, first, count, _, _ in _chunks(data) if kind == 2
            for index in range(count) if any(data[offset + RECORD * index : offset + RECORD * index + 4])]  # fmt: skip


def _check_record(data: bytearray, number: int, offset: int) -> None:
    check = check_in_python(bytes(data[offset + 4 : offset + RECORD]), number) & 0xFFFFFFFF or 1
    struct.pack_into("<I", data, offset, check)


def bit_of_a_step(mutant: Mutant) -> Expected:
    path, data = _trail(mutant)
    number, offset = mutant.choose(_records(data))
    (flags,) = struct.unpack_from("<I", data, offset + 4)
    known = [
        place for place, name in enumerate(FIELDS) if flags & FLAGS[name] and name != "inputs"
    ]  # told, no difference
    place = mutant.choose(known)
    if mutant.chance.random() < 0.1 and FIELDS[place] != "before":  # it is not known any more
        struct.pack_into("<I", data, offset + 4, flags ^ FLAGS[FIELDS[place]])
    else:
        data[offset + 8 + 8 * place + mutant.chance.randrange(8)] ^= 1 << mutant.chance.randrange(8)
    _check_record(data, number, offset)
    path.write_bytes(data)
    mutant.seal()
    names = {"torch": "random state", "python": "random state of Python", "numpy": "random state of NumPy"}
    names["before"] = "parameters before the step"
    return "trail", names.get(FIELDS[place], FIELDS[place])


def swap_of_two_trail_steps(mutant: Mutant) -> Expected:
    path, data = _trail(mutant)
    (one, at), (other, there) = mutant.chance.sample(_records(data), 2)
    data[at : at + RECORD], data[there : there + RECORD] = data[there : there + RECORD], data[at : at + RECORD]
    _check_record(data, one, at)
    _check_record(data, other, there)
    path.write_bytes(data)
    mutant.seal()
    return "trail", ""


def digest_of_a_trail_tensor(mutant: Mutant) -> Expected:
    path, data = _trail(mutant)
    tables = [(offset, count, kept) for kind, offset, _, count, kept, _ in _chunks(data) if kind == 3]
    slots = [(offset + slot * (16 + 16 * count), count) for offset, count, kept in tables for slot in range(2 * kept)]
    offset, count = mutant.choose([(at, count) for at, count in slots if any(data[at : at + 8])])
    place = mutant.chance.randrange(2 * count)
    data[offset + 16 + 8 * place] ^= 1 << mutant.chance.randrange(8)
    digests = bytes(data[offset + 16 : offset + 16 + 16 * count])
    (number,) = struct.unpack_from("<Q", data, offset)
    struct.pack_into("<Q", data, offset + 8, check_in_python(digests, number))
    path.write_bytes(data)
    mutant.seal()
    return "trail", "gradients" if place < count else "parameters"


def renamed_trail_tensor(mutant: Mutant) -> Expected:
    path, data = _trail(mutant)
    _, offset, _, _, _, length = mutant.choose([chunk for chunk in _chunks(data) if chunk[0] == 1])
    text = bytes(data[offset : offset + length])
    data[offset : offset + length] = text.replace(b"weight", b"WEIGHT", 1)
    struct.pack_into("<Q", data, offset - 24, check_in_python(bytes(data[offset : offset + length])))
    head = bytes(data[offset - 64 : offset - 16])
    struct.pack_into("<Q", data, offset - 16, check_in_python(head))
    path.write_bytes(data)
    mutant.seal()
    return "trail", "tensors"


EVERYWHERE: tuple[Mutation, ...] = (
    loss_by_an_ulp,
    bit_of_a_metric,
    swap_of_two_steps,
    renamed_metric,
    missing_line,
    digest_of_weights_or_random_state,
    seed,
    bit_of_a_prediction,
    swap_of_two_predictions,
    digest_of_an_output,
    missing_output,
    other_end,
    missing_file,
)
WITH_A_TRAIL: tuple[Mutation, ...] = (
    digest_of_a_tensor,
    bit_of_a_step,
    swap_of_two_trail_steps,
    digest_of_a_trail_tensor,
    renamed_trail_tensor,
)


def damage(mutant: Mutant) -> str:
    """One bit, anywhere, with nothing sealed again; a file that is gone, or cut short. Returns the file."""
    sealed = [rundir.RUN, rundir.METRICS, rundir.OUTPUTS, rundir.ENVIRONMENT]
    files = [mutant.path / name for name in sealed]
    for name in (rundir.TRAIL, rundir.SAMPLES, rundir.EVALUATION, rundir.ENTROPY):
        known = (".trail", ".samples", ".npy", ".entropy")
        files += sorted(path for path in mutant.path.glob(f"{name}/*") if path.suffix in known)
    path = mutant.choose(files)
    data = bytearray(path.read_bytes())
    choice = mutant.chance.random()
    if choice < 0.05:
        path.unlink()
    elif choice < 0.1:
        path.write_bytes(data[: mutant.chance.randrange(len(data))])
    else:
        data[mutant.chance.randrange(len(data))] ^= 1 << mutant.chance.randrange(8)
        path.write_bytes(data)
    return str(path.name)


def content(path: Path) -> str:
    """A digest of all files, to see that something was changed."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        digest.update(str(file.relative_to(path)).encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()
