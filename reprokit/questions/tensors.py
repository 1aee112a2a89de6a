"""Adds tensors that a replay saved to its recording's directory, as far as the replay is proved to be that run."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import CannotWriteRun, RunDamaged, reason, refused_as
from reprokit.model.question import TensorSelection
from reprokit.model.run import FINISHED
from reprokit.model.tensor_selection import ALL
from reprokit.questions.proof import ReplayProof
from reprokit.questions.replays import AnsweredReplay
from reprokit.questions.seen_values import ProofGap, SeenValues, collections_of, gap
from reprokit.run.early_end import ENOUGH
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

INDEX, SHARD = ".jsonl", ".safetensors"
MAX_INDEX = 4 << 30  # bytes
MAX_HEAD = 64 << 20
BLOCK = 16 << 20
_SHARD = re.compile(r"([0-9]{6,9})" + re.escape(SHARD))

_GAPS = {reason.name.lower(): reason for reason in ProofGap}

ValueKey = tuple[Any, ...]  # step, mode, name and call of a value, and the names of its reductions


@dataclass
class AddedTensors:
    """What was added to the recording, and what was not."""

    values: int = 0  # number added
    existing: int = 0  # number that the recording already had
    unproved: int = 0  # number not added, as their steps are not proved
    has_unproved_gradients: bool = False  # of TensorFlow, whose functions may compute other bits if these are read
    differing: list[str] = field(default_factory=list)  # existing values that differ from the replay's
    seen: int = 0  # values, new or existing, that the trail proves
    agreed: int = 0  # that it does not see, and that a second replay gave again
    gaps: dict[ProofGap, list[str]] = field(default_factory=dict)  # saved values that are not proved, by reason
    unmatched: list[str] = field(default_factory=list)  # words of the question that no value was saved for
    compiled: str = ""  # whence values within torch.compile are, or why they are none; empty if none were asked for
    proved_steps: int = 0  # largest number of a process
    names: set[str] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)


def has_compiled(replay: AnsweredReplay) -> bool:
    """Return whether values were asked for that lie within a model which torch.compile runs as one."""
    source = replay.run.path / rundir.TENSORS
    indexes = bounded_names(source, INDEX) if source.is_dir() else ()
    return any(line.get("why") == "compiled" for name in indexes for line in _lines(source / name))


def has_unseen(replay: AnsweredReplay, recording: RunDirectory) -> bool:
    """Return whether a replay saved new values that its trail does not see: only a second one can confirm them."""
    return any(merge.has_unseen() for merge in _merges(replay, recording, None, AddedTensors()))


def add(
    replay: AnsweredReplay, recording: RunDirectory, selection: TensorSelection, second: AnsweredReplay | None = None
) -> AddedTensors:
    """Add the tensors that a replay saved to its recording; a second replay confirms what the trail does not see."""
    added = AddedTensors()
    target = recording.path / rundir.TENSORS
    if (replay.run.path / rundir.TENSORS).is_dir():
        with refused_as(CannotWriteRun, target, "free space, and ask again"):
            target.mkdir(mode=0o700, exist_ok=True)
            with _locked(target):
                for merge in _merges(replay, recording, second, added):
                    merge.run()
    added.unmatched = _unmatched(replay, selection)
    return added


def _merges(
    replay: AnsweredReplay, recording: RunDirectory, second: AnsweredReplay | None, added: AddedTensors
) -> Iterator[_TensorMerge]:
    source = replay.run.path / rundir.TENSORS
    for name in bounded_names(source, INDEX) if source.is_dir() else ():
        yield _TensorMerge(replay, recording, name.removesuffix(INDEX), added, second)


def _unmatched(replay: AnsweredReplay, selection: TensorSelection) -> list[str]:
    """Return the collections and regular expressions for which the replay saved nothing."""
    source, names = replay.run.path / rundir.TENSORS, {}
    for index in bounded_names(source, INDEX) if source.is_dir() else ():
        lines = list(_lines(source / index))
        saved, collections = {line["name"] for line in lines if "step" in line}, collections_of(lines)
        names.update({name: collections.get(name, []) for name in saved})
    unmatched = [
        word
        for rule in selection.rules
        for word, is_matched in (
            *((word, any(word in of for of in names.values())) for word in rule.collections),
            *((word or ALL, any(re.search(word, name) for name in names)) for word in rule.patterns),
        )
        if not is_matched
    ]
    return list(dict.fromkeys(unmatched))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory, so that no other process adds to it meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _TensorMerge:
    """Adds the saved values of one process."""

    def __init__(
        self,
        replay: AnsweredReplay,
        recording: RunDirectory,
        key: str,
        added: AddedTensors,
        second: AnsweredReplay | None,
    ) -> None:
        self._source, self._target = replay.run.path / rundir.TENSORS, recording.path / rundir.TENSORS
        self._key, self._added = key, added
        self._lines = list(_lines(self._source / f"{key}{INDEX}"))
        self._is_resumed, self._is_eager = replay.checkpoint is not None, replay.is_eager
        if replay.checkpoint is not None:
            _count_from(replay.checkpoint.step, self._lines)
        self._existing: dict[ValueKey, str] = {}
        self._existing_gaps: dict[ValueKey, ProofGap] = {}
        self._declared: set[str] = set()
        self._is_begun = self._read_existing()
        self._is_of_tensorflow = bool(self._lines) and self._lines[0].get("framework") == "tensorflow"
        process, number = str(self._lines[0].get("process")) if self._lines else "", int(key.rpartition("-")[2])
        process += f" (start {number + 1})" if number else ""
        self._until = self._proved_steps(replay.proof, process)
        added.proved_steps = max(added.proved_steps, self._until)
        run, diverged = replay.run.run, replay.proof.holds_until(process)
        is_whole = diverged is None and recording.run.status == FINISHED and run.exit_code == recording.run.exit_code
        self._is_whole = is_whole and not replay.run.has(f"{rundir.ANSWERS}/{ENOUGH}")
        self._collections, self._seen = collections_of(self._lines), SeenValues(recording, replay.proof, process)
        self._has_changes = bool(replay.changes)
        self._again = _values_again(second, key, process)

    def has_unseen(self) -> bool:
        """Return whether there are new values, of proved steps, that the trail does not see."""
        return any(
            self._is_proved(line["step"]) and _value_key(line) not in self._existing and not self._sees(line)
            for line in self._lines
            if "step" in line
        )

    def _sees(self, line: dict[str, Any]) -> bool:
        return self._seen.sees(
            line["step"], line["name"], line.get("mode", ""), self._collections.get(line["name"], ())
        )

    def _gap(self, line: dict[str, Any]) -> ProofGap | None:
        """Return why a value is not proved, and count it."""
        added, key = self._added, _value_key(line)
        reason: ProofGap | None
        if self._sees(line):
            added.seen += 1
            return None
        if key in self._existing:
            reason = self._existing_gaps.get(key)
        else:
            reason = gap(_content(line), self._again.get(key), self._has_changes)
        if reason is None:
            added.agreed += 1
        else:
            added.gaps.setdefault(reason, []).append(f"{line['name']} at step {line['step']}")
        return reason

    def _proved_steps(self, proof: ReplayProof, process: str) -> int:
        """Return the number of steps that are proved; an optimizer that began later is compared from its own step 0."""
        end: dict[str, Any] = next((line for line in reversed(self._lines) if line.get("end")), {})
        first_steps: dict[str, int] = end.get("first", {})
        differing = [one.step + first_steps.get(one.series, 0) for one in proof.diverged if one.process == process]
        updates = [count for (name, _), count in proof.steps.items() if name == process]
        are_all_compared = updates and sum(updates) == end.get("updates")
        if self._is_resumed and len(updates) > 1 and (not are_all_compared or any(first_steps.values())):
            return 0  # its steps need not be those of the trail, by which they are known
        return min([end["steps"] if are_all_compared else max(updates, default=0), *differing])

    def _read_existing(self) -> bool:
        path = self._target / f"{self._key}{INDEX}"
        if not os.path.lexists(path):
            return False
        for line in _lines(path):
            if "tensor" in line:
                self._declared.add(str(line["tensor"]))
            elif "step" in line:
                self._existing[_value_key(line)] = _content(line)
                if "unproved" in line:
                    self._existing_gaps[_value_key(line)] = _GAPS.get(line["unproved"], ProofGap.ONCE)
        return True

    def run(self) -> None:
        """Write a shard for each of the replay's, then the lines that refer to it."""
        text: list[dict[str, Any]] = []
        lines_by_shard: dict[int, list[dict[str, Any]]] = {}
        for line in self._lines[1 if self._is_begun else 0 :]:
            if "step" in line:
                if self._is_new(line):
                    text.append(line)
                    if "shard" in line:
                        lines_by_shard.setdefault(line["shard"], []).append(line)
            elif "passed" in line or "dropped" in line:
                if self._is_proved(line["passed"] if "passed" in line else line["dropped"]):
                    text.append(line)
            elif "end" not in line and line.get("tensor") not in self._declared:
                text.append(line)
        names = os.listdir(self._target)
        taken = [int(match[1]) for name in names if (match := _SHARD.fullmatch(name.removeprefix(f"{self._key}-")))]
        for number, (shard, lines) in enumerate(sorted(lines_by_shard.items()), max(taken, default=-1) + 1):
            self._copy(shard, number, lines)
        self._append(text)

    def _is_proved(self, step: int) -> bool:
        """Return whether a step's values are proved; after the last step, only if the whole run is equal."""
        return step < self._until or (self._is_whole and step == self._until)

    def _is_new(self, line: dict[str, Any]) -> bool:
        added, key = self._added, _value_key(line)
        if not self._is_proved(line["step"]):
            added.unproved += 1
            added.has_unproved_gradients |= self._is_of_tensorflow and line["name"].startswith("gradient/")
            return False
        existing, reason = self._existing.get(key), self._gap(line)
        added.names.add(line["name"])
        added.steps.add(line["step"])
        if existing is None:
            added.values += 1
            if reason is not None:
                line["unproved"] = reason.name.lower()
            if self._is_eager and not self._sees(line):
                line["eager"] = True
            return True
        added.existing += 1
        if existing != _content(line):
            added.differing.append(f"{line['name']} at step {line['step']}")
        return False

    def _copy(self, shard: int, number: int, lines: list[dict[str, Any]]) -> None:
        """Write the new values of one of the replay's shards to a shard."""
        target = self._target / f"{self._key}-{number:06d}{SHARD}"
        partial = target.with_suffix(".partial")
        with open(self._source / f"{self._key}-{shard:06d}{SHARD}", "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head: dict[str, Any] = msgspec.json.decode(file.read(min(size, MAX_HEAD)))
            entries, spans, end = {}, [], 0
            for key, line in enumerate(lines):
                entry = head[line["key"]]
                begin, stop = entry["data_offsets"]
                spans.append((8 + size + begin, stop - begin))
                entries[str(key)] = {**entry, "data_offsets": [end, end + stop - begin]}
                end += stop - begin
                line.update(shard=number, key=str(key))
            text = msgspec.json.encode(entries)
            text += b" " * (-len(text) % 8)
            with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as new:
                new.write(len(text).to_bytes(8, "little") + text)
                for begin, length in spans:
                    os.lseek(file.fileno(), begin, os.SEEK_SET)
                    _copy_bytes(file.fileno(), new, length)
        os.rename(partial, target)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        path = self._target / f"{self._key}{INDEX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - (1 << 20), 0))
            tail = file.read()
            file.seek(tail.rfind(b"\n") + 1 - len(tail), os.SEEK_END)  # drop a truncated line
            file.truncate()
            file.write(data)


def _copy_bytes(source: int, target: Any, length: int) -> None:
    while length:
        data = os.read(source, min(length, BLOCK))
        if not data:
            raise RunDamaged("a shard of the replay is cut short; ask again")
        target.write(data)
        length -= len(data)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of an index."""
    with os.fdopen(open_file(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_INDEX:
            raise RunDamaged(f"{path} is larger than {MAX_INDEX} bytes; its tensors cannot be read")
        for number, line in enumerate(iter(lambda: file.readline(1 << 20), b""), 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.MsgspecError, RecursionError) as error:
                raise RunDamaged(f"{path}, line {number}: {reason(error)}; its tensors cannot be read") from None


def _count_from(step: int, lines: list[dict[str, Any]]) -> None:
    """Number the steps of a replay that resumed a checkpoint as its recording does."""
    for line in lines:
        for name in ("step", "passed", "dropped", "steps"):
            if name in line and line[name] >= 0:
                line[name] += step
        if "updates" in line:
            line["updates"] += step * len(line.get("first", {}))


def _values_again(second: AnsweredReplay | None, key: str, process: str) -> dict[ValueKey, str]:
    """Return the contents of a second replay's values, up to the step on from which it is another run."""
    path = None if second is None else second.run.path / rundir.TENSORS / f"{key}{INDEX}"
    if second is None or path is None or not path.is_file():
        return {}
    until = second.proof.holds_until(process)
    lines = [line for line in _lines(path) if "step" in line]
    return {_value_key(line): _content(line) for line in lines if until is None or line["step"] < until}


def _value_key(line: dict[str, Any]) -> ValueKey:
    kind = tuple(sorted(line["reductions"])) if "reductions" in line else ()
    return line["step"], line.get("mode"), line.get("name"), line.get("call"), kind


def _content(line: dict[str, Any]) -> str:
    """Return the content of a line, which is the same for equal values."""
    return msgspec.json.encode([line.get(key) for key in ("dtype", "shape", "digest", "reductions")]).decode()
