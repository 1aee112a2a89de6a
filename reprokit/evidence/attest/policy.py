"""Checks a signed statement against a verifier's policy, and artifacts against its digests."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from reprokit.core.errors import PolicyNotMet, Refused, refused_as
from reprokit.evidence.attest.envelope import Signed, Subject
from reprokit.evidence.attest.predicate import Rerun, moment
from reprokit.evidence.attest.source import source_line
from reprokit.run_files import rundir

AHEAD = timedelta(minutes=5)  # tolerated advance of the signer's clock


class Policy(msgspec.Struct, frozen=True):
    """The conditions that a statement must meet; None stands for any value."""

    predicate: str | None = None
    verdict: str | None = None
    command: tuple[str, ...] | None = None
    max_age: timedelta | None = None
    executed: bool = False  # whether the signing process must have executed the runs
    commit: str | None = None  # hexadecimal digits with which that of both runs begins
    required: tuple[str, ...] = ()  # categories of which something must have been compared
    allow_ignored: bool = False  # whether `identical` may leave out differences that the signer declared

    def require(self, signed: Signed) -> None:
        """Raise PolicyNotMet if a condition is not met, with the value in the statement."""
        rerun = signed.rerun
        if self.predicate is not None and signed.predicate_type != self.predicate:
            raise PolicyNotMet(f"the statement is of type {signed.predicate_type}, not {self.predicate} as required")
        if self.verdict is not None and rerun.verdict != self.verdict:
            raise PolicyNotMet(f"the statement's verdict is {rerun.verdict}, not {self.verdict} as required")
        if self.verdict == "identical" and rerun.ignored_differences and not self.allow_ignored:
            what = f"{rerun.ignored_differences} differences were ignored, as its signer declared"
            raise PolicyNotMet(f"the statement's verdict is {self.verdict}, but {what}; --allow-ignored accepts that")
        if self.executed and rerun.executed_by != "signer":
            raise PolicyNotMet("the statement was made from run directories: its signer did not execute the runs")
        for run in rerun.runs if self.command is not None else ():
            if run.command != self.command:
                raise PolicyNotMet(f"a run of the statement executed another command: {shlex.join(run.command)}")
        self._require_commit(rerun)
        self._require_compared(rerun)
        self._require_age(rerun)

    def _require_commit(self, rerun: Rerun) -> None:
        """Check that all code, and what else of the checkout git knows, had the bytes of the commit as it was used."""
        if self.commit is None:
            return
        for source in (run.source for run in rerun.runs):
            if not source.commit.startswith(self.commit):
                raise PolicyNotMet(f"a run of the statement was executed at commit {source.commit or 'unknown'}")
            if source.changed_files or source.outside_files or source.not_compared or not source.same_files:
                line = source_line(source)
                raise PolicyNotMet(f"a run of the statement did not use that commit's files alone: {line}")

    def _require_compared(self, rerun: Rerun) -> None:
        """Check that each required category was recorded and compared; whether it is the same is the verdict's."""
        for category in self.required:
            verdicts = {one.verdict for one in rerun.compared if one.name.startswith(f"{category}: ")}
            if not verdicts - {"information", "not-recorded", "missing"}:  # missing: one run alone has it
                raise PolicyNotMet(f"nothing of {category} was compared, which --require asks for")

    def _require_age(self, rerun: Rerun) -> None:
        """Check the age of both statement and re-run: a new statement may be about an old run."""
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
class CheckedArtifacts:
    """The checked and unchecked artifacts of a statement."""

    checked: tuple[str, ...]  # artifacts whose digests match the statement
    unchecked: tuple[str, ...]  # subjects for which no artifact was given


def check(signed: Signed, artifacts: Sequence[Path], *, partial: bool) -> CheckedArtifacts:
    """Compare artifacts with the digests in a statement; raises Refused if one differs or is missing."""
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
    return CheckedArtifacts(tuple(name for name in names if name in checked), unchecked)


def check_materials(signed: Signed, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the materials whose bytes the files have; raises Refused for a file that is none."""
    names = {material.digest.sha256: material.name for material in reversed(signed.rerun.materials)}
    checked = []
    for file in files:
        digest = _sha256(file)
        if digest not in names:
            same = next((name for name in names.values() if name.rpartition("/")[2] == file.name), "")
            wrong = f"its digest is another than that of {same}" if same else "no material has its bytes"
            raise Refused(f"{file} is not what the statement says was used: {wrong}")
        checked.append(names[digest])
    return tuple(checked)


class Subjects:
    """Finds subjects of a statement by file names."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._named = {subject.name: subject for subject in subjects}
        self._by_last_component: dict[str, list[Subject]] = defaultdict(list)
        for subject in subjects:
            self._by_last_component[subject.name.rpartition("/")[2]].append(subject)

    def find(self, name: str) -> Subject | None:
        """Return the subject of this name, or the only one with the same last component."""
        candidates = self._by_last_component.get(name.rpartition("/")[2], [])
        return self._named.get(name) or (candidates[0] if len(candidates) == 1 else None)


def _files(places: Sequence[Path]) -> Iterator[tuple[str, Path, bool]]:
    """Yield files with their names in a statement, and whether they were listed individually."""
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
