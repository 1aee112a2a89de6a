"""Every exception of reprokit: a slug, which is its anchor in docs/errors.md, and an exit code.

Only ``reprokit.cli.main`` prints them, as ``reprokit: <slug>: <what, and what to do>``.
"""

from __future__ import annotations

import shlex

EXIT_IDENTICAL = 0
EXIT_DIFFERENT = 1
EXIT_TROUBLE = 2  # verify, show, doctor: nothing could be compared or read
EXIT_NOT_SIGNED = 3  # attest verify
EXIT_POLICY = 4  # attest verify
EXIT_OWN_FAILURE = 125  # record, replay: reprokit itself failed (as env and timeout do)
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


class ReprokitError(Exception):
    """What went wrong and what to do about it, in one line."""

    slug = "internal"
    exit_code = EXIT_TROUBLE


def reason(error: BaseException) -> str:
    """What an exception says, in one line; its type where it says nothing, as MemoryError does."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


class UsageError(ReprokitError):
    """The command line asks for something that makes no sense."""

    slug = "usage"


class SystemRefused(ReprokitError):
    """The operating system refused something: a full disk behind stdout, a path that is too long."""

    slug = "system"


class LaunchError(ReprokitError):
    """reprokit failed before or beside the training: record and replay exit 125."""

    slug = "launch"
    exit_code = EXIT_OWN_FAILURE


class NoCommand(LaunchError):
    """No command was given to run."""

    slug = "no-command"


class DashesMissing(LaunchError):
    """The command to run does not stand after ``--``."""

    slug = "dashes-missing"


class CommandNotFound(LaunchError):
    """The command to run does not exist."""

    slug = "command-not-found"
    exit_code = EXIT_NOT_FOUND


class CommandNotExecutable(LaunchError):
    """The command to run exists but cannot be executed."""

    slug = "command-not-executable"
    exit_code = EXIT_CANNOT_RUN


class NestedRun(LaunchError):
    """reprokit itself runs inside a recorded or replayed run."""

    slug = "nested"


class RunExists(LaunchError):
    """The run directory asked for exists already; nothing is overwritten silently."""

    slug = "run-exists"


class CannotWriteRun(LaunchError):
    """The run directory cannot be made or written."""

    slug = "cannot-write-run"


class NotSupported(LaunchError):
    """This platform cannot record or replay."""

    slug = "not-supported"


class ShimMissing(LaunchError):
    """The shim was not built, or has another ABI number than this reprokit."""

    slug = "shim"


class NotReplayable(LaunchError):
    """This run cannot be replayed: it is itself a replay, or never had a random profile."""

    slug = "not-replayable"


class WorkingDirectoryMissing(LaunchError):
    """The directory in which the recorded command ran is not there any more."""

    slug = "working-directory"


class NoProof(LaunchError):
    """strace, with which --prove accounts for every request, is missing or may not trace."""

    slug = "no-proof"


class UnknownPatch(LaunchError):
    """There is no patch of this id."""

    slug = "unknown-patch"


class ConflictingPatches(LaunchError):
    """Two patches that were asked for cannot be together."""

    slug = "conflicting-patches"


class ReplayStopped(LaunchError):
    """A strict replay met a request that the random profile does not hold."""

    slug = "replay-stopped"


class BadRecipe(LaunchError):
    """The file given to ``record --recipe`` is no recipe, or asks for what this reprokit does not know."""

    slug = "recipe"


class TrainingFailed(LaunchError):
    """The training that reproduce should make repeat does not come to its end by itself."""

    slug = "training-failed"


class RunError(ReprokitError):
    """A run directory cannot be used. cli.main exits 125 when record or replay raises it."""

    slug = "run"


class RunNotFound(RunError):
    """There is no run directory at this path."""

    slug = "run-not-found"


class RunDamaged(RunError):
    """A file of the run directory is truncated, altered or not what it says it is."""

    slug = "run-damaged"


class RunTooNew(RunError):
    """The run directory was written by a newer reprokit."""

    slug = "run-too-new"


class RunNotReadable(RunError):
    """The run directory belongs to another user or may not be read."""

    slug = "run-not-readable"


class RunInProgress(RunError):
    """The run is being written right now."""

    slug = "run-in-progress"


class NotProfiled(RunError):
    """The run holds no findings, as it was not made by reprokit profile."""

    slug = "not-profiled"


class BadSnapshot(ReprokitError):
    """A snapshot is damaged, altered, of another model or none at all."""

    slug = "bad-snapshot"


class NotRedone(ReprokitError):
    """A captured step could not be done again: the script's first step never came, or it is another training."""

    slug = "not-redone"


class NothingComparable(ReprokitError):
    """Two runs have nothing in common that could be compared: never the same as identical."""

    slug = "nothing-comparable"


class ArtifactDamaged(ReprokitError):
    """A file to compare is not what its format says, or goes beyond what a reader takes on."""

    slug = "artifact-damaged"


class ArtifactNotReadable(ReprokitError):
    """A file or directory to compare does not exist, may not be read, or is of no kind that can be."""

    slug = "artifact-not-readable"


class LibraryMissing(ReprokitError):
    """The library that compares tensors was not built, or has another ABI number than this reprokit."""

    slug = "library"


class ExtraMissing(ReprokitError):
    """Libraries that what was asked for needs are not installed: the message says how to install them.

    libraries: as pip takes them. otherwise: what can be done without them, or what was kept.
    """

    slug = "extra-missing"

    def __init__(self, purpose: str, *libraries: str, otherwise: str = "") -> None:
        names = " and ".join(library.partition("[")[0] for library in libraries)
        message = f"{purpose} needs {names}: pip install {shlex.join(libraries)}"
        super().__init__(f"{message}, {otherwise}" if otherwise else message)


class TrackerFailed(ReprokitError):
    """An experiment tracker did not take what it was given."""

    slug = "tracker-failed"


class BadGate(ReprokitError):
    """The list of trainings to check is missing, or is not what it must be."""

    slug = "bad-gate"


class CannotCopy(ReprokitError):
    """The fresh copy of a checkout in which a run of a gate is to start cannot be made."""

    slug = "cannot-copy"


class BadStudy(ReprokitError):
    """What a study is to run is missing, or is not what it must be."""

    slug = "bad-study"


class StudyChanged(ReprokitError):
    """A study that is to go on is no longer the one that was begun."""

    slug = "study-changed"


class StudyDamaged(ReprokitError):
    """A directory holds no study, or one that was damaged."""

    slug = "study-damaged"


class StudyInProgress(ReprokitError):
    """A run of the study is still at work."""

    slug = "study-in-progress"


class StudyTooLarge(ReprokitError):
    """What a study would need does not fit on the disk."""

    slug = "study-too-large"


class StoreUnreachable(ReprokitError):
    """The place through which the results of a study come back cannot be reached."""

    slug = "store-unreachable"


class EngineUnusable(ReprokitError):
    """What is to make the runs of a study elsewhere cannot be reached, or not be used as it is asked for."""

    slug = "engine-unusable"


class CannotBegin(EngineUnusable):
    """A machine that is to make runs of a study lacks what it needs for that."""

    slug = "cannot-begin"


class BadKey(ReprokitError):
    """A key file does not exist, is of another kind, or may be read by others."""

    slug = "bad-key"


class BadBundle(ReprokitError):
    """A file is no bundle of a run, was changed, or goes beyond the bounds of one."""

    slug = "bad-bundle"


class BadEnvelope(ReprokitError):
    """A file is no signed envelope, or goes beyond the bounds of one."""

    slug = "bad-envelope"


class NotSigned(ReprokitError):
    """No signature of an envelope was made by the given key over this content."""

    slug = "not-signed"
    exit_code = EXIT_NOT_SIGNED


class PolicyNotMet(ReprokitError):
    """A statement was signed by the given key and is not what the verifier asked for."""

    slug = "policy-not-met"
    exit_code = EXIT_POLICY


class Refused(ReprokitError):
    """A signed statement is about other artifacts, or is another tool's."""

    slug = "refused"
    exit_code = EXIT_DIFFERENT


class NothingToAttest(ReprokitError):
    """There is no comparison, or no artifact, that a statement could be about."""

    slug = "nothing-to-attest"


class CannotWriteReport(ReprokitError):
    """A report cannot be written where it was to be."""

    slug = "cannot-write-report"


class KnowledgeError(ReprokitError):
    """A file of profiles/ is not what its schema says, or no fact has the id asked for."""

    slug = "knowledge"
