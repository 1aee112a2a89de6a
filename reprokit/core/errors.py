"""Every exception of reprokit: a slug, which is its anchor in docs/errors.md, and an exit code.

Only ``reprokit.cli.main`` prints them, as ``reprokit: <slug>: <what, and what to do>``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_IDENTICAL = 0
EXIT_DIFFERENT = 1
EXIT_TROUBLE = 2  # verify, show, doctor: nothing could be compared or read
EXIT_NOT_COMPARED = 3  # verify: nothing differs, and an output that changed could not be compared
EXIT_NOT_SIGNED = 3  # attest verify
EXIT_POLICY = 4  # attest verify
EXIT_STOPPED = 122  # record, replay, run: the training was stopped because a rule raised an alarm
EXIT_OWN_FAILURE = 125  # record, replay: reprokit itself failed (as env and timeout do)
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


class ReprokitError(Exception):
    """What went wrong and what to do about it, in one line."""

    slug = "internal"
    exit_code = EXIT_TROUBLE

    def __init_subclass__(cls, slug: str = "", exit_code: int | None = None) -> None:
        """Take over what a class says of itself behind its base; the rest it has from that."""
        cls.slug = slug or cls.slug
        cls.exit_code = cls.exit_code if exit_code is None else exit_code


def reason(error: BaseException) -> str:
    """Return what an exception says, in one line; its type where it says nothing, as MemoryError does."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def refused_as(kind: type[ReprokitError], action: object, then: str = "") -> Iterator[None]:
    """Raise an error of ours where the system refuses something: of what, why, and what to do then."""
    try:
        yield
    except OSError as error:
        raise kind(f"{action}: {error.strerror}{then and f'; {then}'}") from None


class UsageError(ReprokitError, slug="usage"):
    """The command line asks for something that makes no sense."""


class SystemRefused(ReprokitError, slug="system"):
    """The operating system refused something: a full disk behind stdout, a path that is too long."""


class LaunchError(ReprokitError, slug="launch", exit_code=EXIT_OWN_FAILURE):
    """reprokit failed before or beside the training: record and replay exit 125."""


class NoCommand(LaunchError, slug="no-command"):
    """No command was given to run."""


class DashesMissing(LaunchError, slug="dashes-missing"):
    """The command to run does not stand after ``--``."""


class CommandNotFound(LaunchError, slug="command-not-found", exit_code=EXIT_NOT_FOUND):
    """The command to run does not exist."""


class CommandNotExecutable(LaunchError, slug="command-not-executable", exit_code=EXIT_CANNOT_RUN):
    """The command to run exists but cannot be executed."""


class NestedRun(LaunchError, slug="nested"):
    """reprokit itself runs inside a recorded or replayed run."""


class RunExists(LaunchError, slug="run-exists"):
    """The run directory asked for exists already; nothing is overwritten silently."""


class CannotWriteRun(LaunchError, slug="cannot-write-run"):
    """The run directory cannot be made or written."""


class NotSupported(LaunchError, slug="not-supported"):
    """This platform cannot record or replay."""


class ShimMissing(LaunchError, slug="shim"):
    """The shim was not built, or has another ABI number than this reprokit."""


class NotReplayable(LaunchError, slug="not-replayable"):
    """This run cannot be replayed: it is itself a replay, or never had a random profile."""


class NotContinued(LaunchError, slug="not-continued"):
    """There is nothing from which this run could go on, or nothing of it is left to be made."""


class WorkingDirectoryMissing(LaunchError, slug="working-directory"):
    """The directory in which the recorded command ran is not there any more."""


class NoProof(LaunchError, slug="no-proof"):
    """strace, with which --prove accounts for every request, is missing or may not trace."""


class UnknownPatch(LaunchError, slug="unknown-patch"):
    """There is no patch of this id."""


class ConflictingPatches(LaunchError, slug="conflicting-patches"):
    """Two patches that were asked for cannot be together."""


class ReplayStopped(LaunchError, slug="replay-stopped"):
    """A strict replay met a request that the random profile does not hold."""


class BadRecipe(LaunchError, slug="recipe"):
    """The file given to ``record --recipe`` is no recipe, or asks for what this reprokit does not know."""


class TrainingFailed(LaunchError, slug="training-failed"):
    """The training that reproduce should make repeat does not come to its end by itself."""


class RunError(ReprokitError, slug="run"):
    """A run directory cannot be used. cli.main exits 125 when record or replay raises it."""


class RunNotFound(RunError, slug="run-not-found"):
    """There is no run directory at this path."""


class RunDamaged(RunError, slug="run-damaged"):
    """A file of the run directory is truncated, altered or not what it says it is."""


class RunTooNew(RunError, slug="run-too-new"):
    """The run directory was written by a newer reprokit."""


class RunNotReadable(RunError, slug="run-not-readable"):
    """The run directory belongs to another user or may not be read."""


class RunInProgress(RunError, slug="run-in-progress"):
    """The run is being written right now."""


class NotProfiled(RunError, slug="not-profiled"):
    """The run holds no findings, as it was neither made by reprokit profile nor judged by rules."""


class NoLedger(RunError, slug="no-ledger"):
    """The run holds no ledger of samples."""


class NotInLedger(RunError, slug="not-in-ledger"):
    """The ledger has no such step or sample."""


class NothingKept(RunError, slug="nothing-kept"):
    """Nothing was kept of what the run printed."""


class NothingSaved(RunError, slug="nothing-saved"):
    """The run saved no tensors."""


class TensorUnavailable(ReprokitError, slug="tensor-unavailable"):
    """The run has no such tensor, or no number of it that can be given."""


class BadRule(ReprokitError, slug="bad-rule"):
    """There is no such rule or parameter, or a file of own rules cannot be used."""


class BadSnapshot(ReprokitError, slug="bad-snapshot"):
    """A snapshot is damaged, altered, of another model or none at all."""


class NotRedone(ReprokitError, slug="not-redone"):
    """A captured step could not be done again: the script's first step never came, or it is another training."""


class NotTheRun(ReprokitError, slug="not-the-run"):
    """Replays that were asked something agree with each other, and not with their recording."""


class NothingComparable(ReprokitError, slug="nothing-comparable"):
    """Two runs have nothing in common that could be compared: never the same as identical."""


class IgnoreRefused(ReprokitError, slug="ignore-refused"):
    """What was declared not to count would hide weights or results, or everything."""

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class BadConfig(ReprokitError, slug="bad-config"):
    """The user's configuration cannot be read, or holds what this reprokit does not know."""


class ArtifactDamaged(ReprokitError, slug="artifact-damaged"):
    """A file to compare is not what its format says, or goes beyond what a reader takes on."""


class ArtifactNotReadable(ReprokitError, slug="artifact-not-readable"):
    """A file or directory to compare does not exist, may not be read, or is of no kind that can be."""


class LibraryMissing(ReprokitError, slug="library"):
    """The library that compares tensors was not built, or has another ABI number than this reprokit."""


class ExtraMissing(ReprokitError, slug="extra-missing"):
    """Libraries that what was asked for needs are not installed: the message says how to install them.

    libraries: as pip takes them. otherwise: what can be done without them, or what was kept.
    """

    def __init__(self, purpose: str, *libraries: str, otherwise: str = "") -> None:
        names = " and ".join(library.partition("[")[0] for library in libraries)
        message = f"{purpose} needs {names}: pip install {shlex.join(libraries)}"
        super().__init__(f"{message}, {otherwise}" if otherwise else message)


@contextmanager
def needed_for(purpose: str, *libraries: str, otherwise: str = "") -> Iterator[None]:
    """Say so where libraries that are imported in this block are not installed."""
    try:
        yield
    except ImportError:
        raise ExtraMissing(purpose, *libraries, otherwise=otherwise) from None


class TrackerFailed(ReprokitError, slug="tracker-failed"):
    """An experiment tracker did not take what it was given."""


class BadGate(ReprokitError, slug="bad-gate"):
    """The list of trainings to check is missing, or is not what it must be."""


class CannotCopy(ReprokitError, slug="cannot-copy"):
    """The fresh copy of a checkout in which a run of a gate is to start cannot be made."""


class CannotResume(ReprokitError, slug="cannot-resume"):
    """A training cannot be interrupted and resumed as was asked, so that nothing can be said of its checkpoints."""


class BadStudy(ReprokitError, slug="bad-study"):
    """What a study is to run is missing, or is not what it must be."""


class StudyChanged(ReprokitError, slug="study-changed"):
    """A study that is to go on is no longer the one that was begun."""


class StudyDamaged(ReprokitError, slug="study-damaged"):
    """A directory holds no study, or one that was damaged."""


class StudyInProgress(ReprokitError, slug="study-in-progress"):
    """A run of the study is still at work."""


class StudyTooLarge(ReprokitError, slug="study-too-large"):
    """What a study would need does not fit on the disk."""


class StoreUnreachable(ReprokitError, slug="store-unreachable"):
    """A place of objects behind a URL cannot be reached, or refuses."""


class EngineUnusable(ReprokitError, slug="engine-unusable"):
    """What is to make the runs of a study elsewhere cannot be reached, or not be used as it is asked for."""


class CannotBegin(EngineUnusable, slug="cannot-begin"):
    """A machine that is to make runs of a study lacks what it needs for that."""


class BadKey(ReprokitError, slug="bad-key"):
    """A key file does not exist, is of another kind, or may be read by others."""


class BadBundle(ReprokitError, slug="bad-bundle"):
    """A file is no bundle of a run, was changed, or goes beyond the bounds of one."""


class BadEnvelope(ReprokitError, slug="bad-envelope"):
    """A file is no signed envelope, or goes beyond the bounds of one."""


class NotSigned(ReprokitError, slug="not-signed", exit_code=EXIT_NOT_SIGNED):
    """No signature of an envelope was made by the given key over this content."""


class PolicyNotMet(ReprokitError, slug="policy-not-met", exit_code=EXIT_POLICY):
    """A statement was signed by the given key and is not what the verifier asked for."""


class Refused(ReprokitError, slug="refused", exit_code=EXIT_DIFFERENT):
    """A signed statement is about other artifacts, or is another tool's."""


class NothingToAttest(ReprokitError, slug="nothing-to-attest"):
    """There is no comparison, or no artifact, that a statement could be about."""


class CannotWriteReport(ReprokitError, slug="cannot-write-report"):
    """A report cannot be written where it was to be."""


class KnowledgeError(ReprokitError, slug="knowledge"):
    """A file of profiles/ is not what its schema says, or no fact has the id asked for."""


class SnapshotNotTaken(ReprokitError, slug="snapshot-not-taken"):
    """The snapshot of a past step cannot be taken: there is no such step, or no replay is proved to come to it."""


class KeyframeRefused(ReprokitError, slug="keyframe-refused"):
    """A replay from a keyframe did not go the recording's way, or did not come to it."""

    run: Path | None = None  # that came to nothing
