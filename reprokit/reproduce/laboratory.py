"""Makes and compares the runs of a reproduction with launch, verify and profiling."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reprokit import knowledge, patches, profiling
from reprokit.core.difference import Verdict
from reprokit.core.errors import ReprokitError
from reprokit.core.messages import say, warn
from reprokit.model.divergence import LocatedDivergence
from reprokit.model.plan import KEEP_OUTPUTS, RECORD, Plan
from reprokit.model.run import ProfilingFacts, timestamp
from reprokit.model.states import WITHOUT_SYSTEM_CALLS
from reprokit.questions import divergence_text
from reprokit.questions.locate import LOGGED, LocateOptions, is_locatable, locate
from reprokit.questions.proof import prove
from reprokit.reproduce.diagnosis import CLOCK_FACT
from reprokit.reproduce.journal import Attempt, Kind, Outcome, PatchOutcome
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import execute
from reprokit.run.replay_plan import replay_plan
from reprokit.run_files import findings as findings_file
from reprokit.run_files import state_files
from reprokit.run_files.findings import GUILTY, OPERATOR, CodePlace, Cure, Finding
from reprokit.run_files.recipe import RecipeSettings, planned
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import RunContext
from reprokit.verify.categories.printed_lines import LineComparer
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores
from reprokit.verify.runs import compare
from reprokit.verify.show.comparison import causes, headline
from reprokit.verify.verdict import shortened, verdict_line

RUNS = "runs"
WORKERS = re.compile(r"compute\.loader#\d+\.workers")  # as verify names what a run computed with
REPEATS = 30  # of each operator call, in a profile
# Settings, orders of completion, reads of the clock and operators: nothing is timed, and only races are measured.
OBSERVED = ProfilingFacts(functions=False, system_calls=WITHOUT_SYSTEM_CALLS, confirm=REPEATS, racing_only=True)


class ProfileOutcome(msgspec.Struct, frozen=True):
    """The result of a profile."""

    attempt: Attempt
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    is_replay: bool = False  # whether it was a whole replay of a recording with its clock


class LocateOutcome(msgspec.Struct, frozen=True):
    """The result of two further replays of a differing pair, ended where it parts."""

    findings: tuple[Finding, ...] = ()  # the first divergent operator, if a cure is known
    agree: bool = False  # whether both replays, with the recorded clock, equal the recording
    notes: tuple[str, ...] = ()


class ReproductionWork(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all runs of a reproduction share."""

    command: tuple[str, ...]
    working_directory: Path
    place: Path  # directory of the journal and the runs
    keep_outputs: int = KEEP_OUTPUTS
    calendar: bool = True  # whether recordings keep the time of day
    steps: int | None = None  # limit of steps of a profile
    seconds: float | None = None
    ignores: Ignores = Ignores()  # what may differ between two runs


class Laboratory:
    """Runs and compares trainings on this machine."""

    def __init__(self, work: ReproductionWork, interruption: Interruption):
        self._work, self._interruption = work, interruption

    def record(self, settings: RecipeSettings, name: str) -> Attempt:
        """Record the training with these settings."""
        return self._attempt("record", self._plan(settings, name))

    def replay(self, recording: Attempt, name: str, *, clock: bool, observed: bool = False) -> Attempt:
        """Replay a recording, with its clock and observed on request."""
        plan = self._replay_plan(recording, name, clock=clock)
        if observed:  # PyTorch's operators are seen by a dispatch mode, under which autograd takes other paths
            profiling = msgspec.structs.replace(OBSERVED, operators="torch" not in self._frameworks(recording))
            plan = msgspec.structs.replace(plan, profiling=profiling)
        return self._attempt("replay", plan)

    def _replay_plan(self, recording: Attempt, name: str, *, clock: bool) -> Plan:
        work = self._work
        plan = replay_plan(self._run_of(recording), work.place / RUNS / name, keep_outputs=work.keep_outputs)
        return msgspec.structs.replace(plan, clock=clock and plan.clock, calendar=work.calendar)

    def profile(self, settings: RecipeSettings, name: str, recording: Attempt | None = None) -> ProfileOutcome:
        """Profile a new recording, or a replay of a recording with its clock."""
        work = self._work
        watching = ProfilingFacts(steps=work.steps, seconds=work.seconds, confirm=REPEATS)
        plan, is_replay = self._plan(settings, name), False
        if recording is not None and work.steps is None and work.seconds is None:
            plan, is_replay = self._replay_plan(recording, name, clock=True), True
        attempt = self._attempt("profile", msgspec.structs.replace(plan, profiling=watching))
        return msgspec.structs.replace(self.findings_of(attempt), is_replay=is_replay)

    def findings_of(self, attempt: Attempt) -> ProfileOutcome:
        """Analyze a profiled or observed run; if it cannot be read, the result holds only a note."""
        try:
            profiled = profiling.analyze(self._run_of(attempt), knowledge.load())
        except ReprokitError as error:
            warn(f"the profile could not be read: {error}", error.slug)
            return ProfileOutcome(attempt, (), (str(error),))
        findings_file.write(self._work.place, profiled)
        is_told = self._work.calendar  # then lines that read the clock are no cause
        kept = tuple(item for item in profiled.findings if not (is_told and item.fact == CLOCK_FACT))
        return ProfileOutcome(attempt, kept, tuple(profiled.notes))

    def can_locate(self, recording: Attempt, replay: Attempt) -> bool:
        """Return whether the runs diverge in a step of a framework whose operators can be logged."""
        return is_locatable(self._run_of(recording), self._run_of(replay))

    def locate(self, recording: Attempt, replay: Attempt) -> LocateOutcome:
        """Replay a differing pair up to the step in which it diverges, and log the operators of that step."""
        options = LocateOptions(pairs=1, outputs=False)
        try:
            divergence = locate(self._run_of(recording), self._run_of(replay), options, self._interruption, say)
        except ReprokitError as error:
            return LocateOutcome(notes=(str(error),))
        lines = tuple(line.strip() for line in divergence_text.lines(divergence))
        return LocateOutcome(tuple(_located(divergence)), divergence.verdict == "same" and divergence.proved, lines)

    def _run_of(self, attempt: Attempt) -> RunDirectory:
        return RunDirectory(self._work.place / attempt.directory)

    def compare(self, left: Attempt, right: Attempt) -> Outcome:
        """Compare two runs as verify does."""
        paths = self._work.place / left.directory, self._work.place / right.directory
        comparison = compare(*paths, ignores=self._work.ignores)
        outcome = _outcome(left, right, comparison, list(state_files.sentences(comparison.left, comparison.right)))
        parted_early = bool(outcome.trail) and prove(self._run_of(left), self._run_of(right)).parted_early
        return msgspec.structs.replace(outcome, parted_early=parted_early)

    def matters(self, attempt: Attempt, option: str) -> bool:
        """Return whether a patch can affect this training, by the frameworks that a run imported."""
        environment = self._run_of(attempt).environment() or {}
        imported, gpus = environment.get("frameworks"), environment.get("gpus")
        if not isinstance(imported, dict):
            return True  # the frameworks are unknown
        return patches.matters(patches.parse([option])[0].patch, imported, has_gpu=bool(gpus))

    def has_operators(self, attempt: Attempt) -> bool:
        """Return whether a run imported a framework other than NumPy; also if that is not known."""
        return bool(self._frameworks(attempt) - {"numpy"})

    def _frameworks(self, attempt: Attempt) -> frozenset[str]:
        """Return the frameworks that a run imported; if that is not known, all that can be logged."""
        imported = (self._run_of(attempt).environment() or {}).get("frameworks")
        return frozenset(imported) if isinstance(imported, dict) else LOGGED

    def discard(self, attempt: Attempt) -> None:
        """Remove a run directory."""
        shutil.rmtree(self._work.place / attempt.directory, ignore_errors=True)

    def _plan(self, settings: RecipeSettings, name: str) -> Plan:
        work = self._work
        plan = Plan(
            mode=RECORD,
            command=work.command,
            working_directory=work.working_directory,
            output=work.place / RUNS / name,
            keep_outputs=work.keep_outputs,
            calendar=work.calendar,
        )
        return planned(plan, settings)

    def _attempt(self, kind: Kind, plan: Plan) -> Attempt:
        assert plan.output is not None
        executed = execute(plan, self._interruption)
        run = RunDirectory(plan.output).run
        return Attempt(
            kind=kind,
            directory=f"{RUNS}/{plan.output.name}",
            ended="" if executed.ended.exit_code == 0 else executed.ended.words,
            seconds=run.duration,
            processor=executed.processor,
            patches=[PatchOutcome(text=patch.text, state=patch.state, why=patch.why) for patch in run.patches],
            fidelity=run.fidelity.words if run.fidelity is not None else "",
            uncovered=list(run.uncovered),
            withheld=run.profile.withheld if run.profile is not None else 0,
        )


def _located(divergence: LocatedDivergence) -> Iterator[Finding]:
    """Yield the first divergent operator as a finding, if a cure is known."""
    for first in divergence.processes[:1]:
        call = first.call
        if divergence.cures:
            yield Finding(
                id="/".join(part for part in (call.framework, call.operator, call.phase, call.device) if part),
                kind=OPERATOR,
                subject=call.operator,
                framework=call.framework,
                device=call.device,
                direction=call.phase,
                where=[CodePlace(*place) for place in call.where],
                fact=divergence.known[0],
                why="it gave another result on equal inputs in two replays",
                shows=["run-to-run"],
                cures=[Cure(patch=patch) for patch in divergence.cures],
                verdict=GUILTY,
            )


def _outcome(left: Attempt, right: Attempt, comparison: Comparison, left_over: list[str]) -> Outcome:
    categories = [
        child for child in comparison.tree.children if child.verdict.differs or child.verdict is Verdict.NOT_COMPARED
    ]
    trail = next((child for child in categories if child.name == "trail"), None)
    return Outcome(
        left=left.directory,
        right=right.directory,
        identical=comparison.identical,
        words=verdict_line(comparison),
        trail="" if trail is None else shortened(headline(trail)),
        categories=[child.name for child in categories],
        causes=list(causes(comparison)),
        notes=[note for note in comparison.notes if note not in left_over],
        workers=_workers(comparison),
        volatile=_is_volatile(comparison),
        leftovers=left_over,
        ignored=[str(use) for use in comparison.ignores],
    )


def _is_volatile(comparison: Comparison) -> bool:
    """Return whether all differences are texts in which what varies first looks like a time, an id or the like."""
    runs = comparison.left.run, comparison.right.run
    left, right = (RunContext(started=timestamp(run.started) or 0.0) for run in runs)
    comparer = LineComparer((left, right))
    leaves = [leaf for leaf in comparison.tree.leaves() if leaf.verdict.differs and (leaf.left or leaf.right)]
    are_alike = [
        comparer.compare(leaf.left, leaf.right) is not None or comparer.look_alike is not None for leaf in leaves
    ]
    return bool(are_alike) and all(are_alike)


def _workers(comparison: Comparison) -> int | None:
    """Return the left run's number of workers, for its first DataLoader that had another number in the right one."""
    leaves = [leaf for leaf in comparison.tree.leaves() if WORKERS.fullmatch(leaf.name) and leaf.can_change_results]
    return next((int(leaf.left) for leaf in leaves if leaf.left.isdecimal() and leaf.left.isascii()), None)
