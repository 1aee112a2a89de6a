"""What a verifier asks of a signed statement, and of the artifacts that it is about."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from reprokit import rundir
from reprokit.errors import PolicyNotMet, Refused, refused_as
from reprokit.report.envelope import Signed, Subject
from reprokit.report.predicate import Rerun, moment

AHEAD = timedelta(minutes=5)  # by which the clock of a signer may be ahead of ours


class Policy(msgspec.Struct, frozen=True):
    """The conditions that a statement must meet; None leaves one out."""

    predicate: str | None = None
    verdict: str | None = None
    command: tuple[str, ...] | None = None
    max_age: timedelta | None = None
    executed: bool = False  # by the process that signed

    def require(self, signed: Signed) -> None:
        """Raise PolicyNotMet with what the statement says instead."""
        rerun = signed.rerun
        if self.predicate is not None and signed.predicate_type != self.predicate:
            raise PolicyNotMet(f"the statement is of type {signed.predicate_type}, not {self.predicate} as required")
        if self.verdict is not None and rerun.verdict != self.verdict:
            raise PolicyNotMet(f"the statement's verdict is {rerun.verdict}, not {self.verdict} as required")
        if self.executed and rerun.executed_by != "signer":
            raise PolicyNotMet("the statement was made from run directories: its signer did not execute the runs")
        for run in rerun.runs if self.command is not None else ():
            if run.command != self.command:
                raise PolicyNotMet(f"a run of the statement executed another command: {shlex.join(run.command)}")
        self._require_age(rerun)

    def _require_age(self, rerun: Rerun) -> None:
        """Check the age of the statement and of the re-run: a statement of today can be about a run of last year."""
        now = datetime.now(timezone.utc)
        moments = {"the statement was made": rerun.made, "the re-run ended": rerun.runs[1].ended}
        for event, text in moments.items():
            if not text and self.max_age is not None:
                raise PolicyNotMet(f"it is not known when {event}, so --max-age cannot be checked")
            age = now - moment(text) if text else timedelta()
            if age < -AHEAD:
                raise PolicyNotMet(f"{event} at {text}, which is in the future; look at the clocks of both machines")
            if self.max_age is not None and age > self.max_age:
                raise PolicyNotMet(f"{event} at {text}, which is older than --max-age allows")


@dataclass(frozen=True)
class Checked:
    """The artifacts of a statement that were checked."""

    checked: tuple[str, ...]  # their digests are those of the statement
    unchecked: tuple[str, ...]  # subjects for which no artifact was given


def check(signed: Signed, artifacts: Sequence[Path], *, partial: bool) -> Checked:
    """Compare artifacts with the digests in a statement; raises Refused where one is another, or none was given."""
    subjects = Subjects(signed.subjects)
    checked = set()
    for name, place, is_named in _files(artifacts):
        subject = subjects.find(name)
        if subject is None and is_named:
            raise Refused(f"{place} is not among the {len(signed.subjects)} artifacts that the statement is about")
        if subject is None:
            continue
        if _sha256(place) != subject.sha256:
            wrong = f"its digest is another than that of {subject.name}"
            raise Refused(f"{place} is not the artifact that was signed: {wrong}")
        checked.add(subject.name)
    names = [subject.name for subject in signed.subjects]
    unchecked = tuple(name for name in names if name not in checked)
    if unchecked and not partial:
        advice = "give the artifacts too, or accept that with --partial"
        raise Refused(f"{len(unchecked)} of {len(names)} artifacts were not checked, first {unchecked[0]}; {advice}")
    return Checked(tuple(name for name in names if name in checked), unchecked)


class Subjects:
    """The subjects of a statement, found by the names of files."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._named = {subject.name: subject for subject in subjects}
        self._alike: dict[str, list[Subject]] = defaultdict(list)
        for subject in subjects:
            self._alike[subject.name.rpartition("/")[2]].append(subject)

    def find(self, name: str) -> Subject | None:
        """Return the subject of the same name, or the only one of the same last part."""
        alike = self._alike.get(name.rpartition("/")[2], [])
        return self._named.get(name) or (alike[0] if len(alike) == 1 else None)


def _files(places: Sequence[Path]) -> Iterator[tuple[str, Path, bool]]:
    """Return files by the names that they may have in a statement, and whether they were named one by one."""
    for place in places:
        if place.is_dir():
            files = (path for path in sorted(place.rglob("*")) if path.is_file() and not path.is_symlink())
            yield from ((path.relative_to(place).as_posix(), path, False) for path in files)
        else:
            yield place.as_posix(), place, True


def _sha256(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file, so it is not an artifact")
    with refused_as(Refused, path), open(path, "rb") as file:
        return rundir.sealed(file).digest.removeprefix("sha256:")
