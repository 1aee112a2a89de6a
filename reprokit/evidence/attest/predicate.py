"""Declares the predicates of reprokit's statements, which are signed and verified, as typed data.

docs/attestations.md describes them; `schemas/rerun.schema.json` and `schemas/test-result.schema.json` are made of these
structs. The meaning of a key changes only together with the number in RERUN.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

RERUN: Final = "urn:reprokit:bitwise-rerun:2"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS: Final = {"identical": "PASSED", "tolerated": "WARNED", "different": "FAILED", "failed": "FAILED"}

_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
Moment = Annotated[str, Meta(pattern=f"^{_MOMENT}$", max_length=20)]  # ISO 8601, UTC
ExitStatus = Annotated[str, Meta(pattern=f"^({_MOMENT})?$", max_length=20)]  # empty if unknown
Sha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)]  # empty if there is none
Count = Annotated[int, Meta(ge=0)]
Texts = tuple[str, ...]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A JSON object with these keys and no others."""


class DigestSet(_Part, frozen=True):
    """Of a file, an artifact or a record."""

    sha256: Sha256


class Verifier(_Part, frozen=True):
    """What compared the runs."""

    name: str
    version: str


class PredicateSource(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """The git checkout in which a run was executed."""

    state: Literal["clean", "changed", "unknown"]
    commit: str
    repository: str = ""  # where the checkout comes from, without credentials; left out where git knows none
    changes: DigestSet  # digest over the diff against the commit and the digests of other files
    changed_files: Texts  # that were used, with other bytes than in the commit
    outside_files: Texts  # of code that was used, and that the commit lacks
    same_files: Count  # that were used as the commit has them
    not_compared: Count  # that were used and not compared


class PredicateRun(_Part, frozen=True):
    """One of the two runs."""

    run_id: str
    kind: Literal["recording", "replay"]
    replay_of: str  # a run id, or empty
    command: Texts
    working_directory: str
    host: str
    machine: str
    source: PredicateSource
    started: ExitStatus
    ended: ExitStatus
    state: str  # how it ended
    outliving: Count  # processes that still ran when the run was closed, and could write later
    record: DigestSet  # of run.json, which holds those of the other files


class Randomness(_Part, frozen=True):
    """What of the randomness was given again."""

    profile: DigestSet
    requests: Count
    bytes: Count
    fidelity: dict[str, Count]
    uncovered: Texts


class Compared(_Part, frozen=True):
    """One thing that was compared, by value or digest."""

    name: str
    verdict: Literal[
        "identical", "bookkeeping", "different", "tolerated", "missing", "ignored", "information", "not-recorded"
    ]
    first: str
    second: str


class Ignored(_Part, frozen=True):
    """A rule that declares what may differ, and how many differences it covered."""

    option: str
    rule: str
    origin: str
    times: Count


class EnvironmentDifference(_Part, frozen=True):
    """A fact of the environment that is not the same in both runs."""

    name: str
    first: str
    second: str
    can_change_results: bool


class PackageVersion(_Part, frozen=True):
    """A package of the first run's environment; where the second has another, that is an environment difference."""

    name: str
    version: str
    imported: bool  # by the training


class Material(_Part, frozen=True):
    """Code, data or a run record, by its digest."""

    name: str
    digest: DigestSet


class Rerun(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Predicate of a bitwise re-run, of reprokit gate --sign and reprokit report --format bitwise-rerun."""

    verdict: Literal["identical", "tolerated", "different", "failed"]
    sentence: str
    executed_by: Literal["signer", "unknown"]
    attention: Texts
    notes: Texts
    counts: dict[str, Count]
    first_difference: str
    verifier: Verifier
    made: Moment
    runs: Annotated[tuple[PredicateRun, ...], Meta(min_length=2, max_length=2)]
    randomness: Randomness
    compared: tuple[Compared, ...]
    not_compared: Texts
    environment_differences: tuple[EnvironmentDifference, ...]
    excluded: Texts
    ignored: tuple[Ignored, ...] = ()  # left out where nothing was declared
    patches: Texts
    seeds: Texts = ()  # seeding calls of the first run with their arguments; left out where none was seen
    packages: tuple[PackageVersion, ...] = ()  # left out where none is known
    materials: tuple[Material, ...]
    limits: Texts

    @property
    def ignored_differences(self) -> int:
        """Return how many differences do not count, as somebody declared."""
        return sum(rule.times for rule in self.ignored)

    @property
    def result(self) -> str:
        """Return the result of a test of in-toto's; what was ignored, and what may be written later, is a warning."""
        result = _RESULTS[self.verdict]
        is_qualified = self.ignored_differences or any(run.outliving for run in self.runs)
        return "WARNED" if result == "PASSED" and is_qualified else result


class TestResult(_Part, frozen=True):
    """Predicate of in-toto's test-result, with the re-run in full under a key of reprokit's own."""

    result: Literal["PASSED", "WARNED", "FAILED"]
    configuration: tuple[Material, ...]
    passed_tests: Texts
    warned_tests: Texts
    failed_tests: Texts
    rerun: Rerun = msgspec.field(name=RERUN)


def read(kind: str, content: Any) -> Rerun:
    """Return the re-run that a predicate of this type is about; raises ValueError where it is not of its schema."""
    if kind == RERUN:
        rerun = msgspec.convert(content, Rerun)
    else:
        result = msgspec.convert(content, TestResult)
        rerun = result.rerun
        if result.result != rerun.result:
            raise ValueError(f"its result {result.result} contradicts its verdict {rerun.verdict}")
    for text in (rerun.made, *(text for run in rerun.runs for text in (run.started, run.ended) if text)):
        moment(text)
    return rerun


def moment(text: str) -> datetime:
    """Return the time that a predicate states; raises ValueError for a thirteenth month."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
