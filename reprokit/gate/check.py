"""Runs each training as often as its checks need, and turns the results into cases."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from reprokit import profiling
from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import (
    CannotWriteReport,
    NothingComparable,
    ReprokitError,
    WorkingDirectoryMissing,
    refused_as,
)
from reprokit.core.messages import TrainingCount, say
from reprokit.core.printable import listed
from reprokit.core.version import VERSION
from reprokit.gate import goldens, requirements, start_conditions
from reprokit.gate.requirements import located
from reprokit.gate.results import (
    FAILED,
    GOLDEN,
    NOT_CHECKED,
    NOTHING_COMPARED,
    PAIRED,
    PASSED,
    REQUIRED,
    TROUBLE,
    VARIED,
    Case,
    GateVerdict,
    Outcome,
    TrainingResult,
)
from reprokit.gate.start_conditions import RestoredSeeds, VariedReplay, chosen, vary
from reprokit.gate.state import LeftoverFiles
from reprokit.gate.trainings import GateTraining
from reprokit.model.plan import RECORD, Plan
from reprokit.model.run import ProfilingFacts, RecipeUsed
from reprokit.model.states import SwitchedPart
from reprokit.run import stragglers
from reprokit.run.checkout_copy import PLACE, FreshCheckouts
from reprokit.run.interruption import Interrupted, Interruption
from reprokit.run.launcher_process import execute
from reprokit.run.process import ExitStatus
from reprokit.run.replay_plan import replay_plan
from reprokit.run.rundirectory import next_directory, shown
from reprokit.run_files import findings as findings_file
from reprokit.run_files import recipe, rundir, state_files
from reprokit.run_files.findings import Finding
from reprokit.run_files.recipe import RecipeSettings
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import ranks
from reprokit.verify.categories.entropy import percent_exact
from reprokit.verify.categories.ranks import RankState
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores, IgnoreUse, together
from reprokit.verify.runs import compare
from reprokit.verify.verdict import GOLDEN_KEPT, answered, counted_bookkeeping, sentence

BARE_RUNS = 3  # number of bare runs, in turn with recordings, to measure the overhead
REPEATS = 30  # of each operator call in a profile
ADVICE = (  # if a run read files of an earlier one
    "remove it before the gate, name it with --data if it is data, or accept it with --allow-state;"
    " with --clean no run sees what another wrote"
)
MAX_CASES = 20_000  # of a comparison; those that differ are always included
RANKS: Mapping[RankState, Outcome] = {
    RankState.EQUAL: PASSED,
    RankState.PARTED: FAILED,
    RankState.APART: TROUBLE,
    RankState.SHARDED: TROUBLE,
    RankState.UNKNOWN: TROUBLE,
}
COMPARED = (
    *("samples", "trail", "process metrics", "weights", "evaluation metrics", "metrics in files"),
    *("random states", "outputs", "console", "exit status"),
)

ResultHook = Callable[[TrainingResult], TrainingResult]


class GateWork(msgspec.Struct, frozen=True, kw_only=True):
    """The directory, options and interruption of a gate."""

    base: Path  # directory that paths of trainings are relative to
    runs: Path  # directory of the directories of trainings, in which their run directories are
    golden: Path | None = None
    update: bool = False
    ignores: Ignores = Ignores()


class Check:
    """The checks of one training."""

    def __init__(
        self, training: GateTraining, work: GateWork, interruption: Interruption, patches: tuple[str, ...] = ()
    ) -> None:
        self._training, self._work, self._interruption = training, work, interruption
        self._runs_of_training = _place_for_runs(work.runs, training.name)
        self._directory = (work.base / training.directory).resolve()
        self._settings = RecipeSettings(patches=patches, clock=training.clock)
        self._recipe: RecipeUsed | None = None
        self._runs: list[Path] = []
        self._pairs: list[tuple[str, str]] = []
        self._findings: tuple[Finding, ...] = ()
        data = [str(work.base / path) for path in training.data]
        self._leftovers = LeftoverFiles(training.name, self._directory, data)
        self._fresh = FreshCheckouts(self._directory, self._runs_of_training / PLACE, data) if training.clean else None
        self._notes: list[str] = []
        self._ignores: list[tuple[IgnoreUse, ...]] = []  # of each comparison
        self._switched_off: set[SwitchedPart] = set()
        self.key = ""
        pairs, varied = training.pairs, bool(chosen(training.vary))
        self._count = TrainingCount(pairs * (2 + varied) + (work.golden is not None and not work.update))

    def judge(self) -> TrainingResult:
        """Return the result with all cases; an error that prevents checks is a case too."""
        started = time.monotonic()
        cases: list[Case] = []
        try:
            with self._interruption.raising():
                for case in self._cases():
                    cases.append(case)  # one by one, to keep the cases before an error
        except Interrupted as interrupted:
            self._end_stragglers()
            message = f"interrupted by {interrupted}"
            cases.append(Case(suite=PAIRED, name="the training", outcome=NOT_CHECKED, message=message))
        except (ReprokitError, OSError) as error:
            cases.append(Case(suite=PAIRED, name="the training", outcome=TROUBLE, message=str(error)))
        self._leftovers.save_list(self._runs_of_training, in_copies=self._fresh is not None)
        if self._fresh is not None:
            self._fresh.remove()
        return TrainingResult(
            name=self._training.name,
            command=self._training.command,
            directory=str(self._directory),
            cases=tuple(cases),
            runs=tuple(map(str, self._runs)),
            pairs=tuple(self._pairs),
            seconds=time.monotonic() - started,
            findings=self._findings,
            notes=tuple(dict.fromkeys(self._notes)),
            ignores=together(self._ignores),
            switched_off=tuple(sorted(self._switched_off)),
        )

    def _cases(self) -> Iterator[Case]:
        if not self._directory.is_dir():
            raise WorkingDirectoryMissing(f"{self._directory}: there is no such directory; say where the training runs")
        if self._training.recipe is not None:
            asked_recipe, self._recipe = recipe.read(self._work.base / self._training.recipe)
            self._settings = recipe.merged(asked_recipe, self._settings)
        recording, is_identical = None, True
        for number in range(1, self._training.pairs + 1):
            suite = PAIRED if number == 1 else f"{PAIRED} {number}"
            recording = self._record(f"recording-{number}")
            replay = self._replay(recording, f"replay-{number}")
            self._pairs.append((str(recording.path), str(replay.path)))
            compared = [*self._comparison_cases(suite, recording, replay), self._state_case(suite)]
            yield from compared
            yield from _unreached_programs(suite, recording, replay)
            yield from self._fidelity(suite, replay)
            yield from _guarded(suite, self._ranks(suite, recording))
            repeats = all(case.outcome == PASSED for case in compared)
            is_identical = is_identical and repeats
            if self._training.locate and not repeats:
                yield from located(suite, recording, replay, self._interruption)
            yield from _guarded(VARIED, self._varied(number, recording, replay if repeats else None))
        assert recording is not None
        yield from _guarded(GOLDEN, self._golden(recording, is_identical))
        yield from _guarded(REQUIRED, self._overhead())
        yield from _guarded(REQUIRED, self._unpatched())
        yield from _guarded(REQUIRED, self._forbidden())
        place, data = self._run_path("resume"), tuple(str(self._work.base / path) for path in self._training.data)
        what = self._training, self._directory, place, data, self._work.ignores
        resumed = requirements.of_resumption(*what, self._interruption)
        yield from _guarded(REQUIRED, resumed)

    # Runs

    def _renew(self) -> None:
        """Renew the fresh checkout before a run starts."""
        if self._fresh is not None:
            self._fresh.renew()

    def _plan(self, name: str) -> Plan:
        plan = Plan(
            mode=RECORD,
            command=self._training.command,
            working_directory=self._run_directory,
            fresh=self._copy_root,
            output=self._run_path(name),
            console=self._training.console,
            calendar=self._training.calendar,
            data=tuple(str(self._work.base / path) for path in self._training.data),
            recipe=self._recipe,
        )
        return recipe.planned(plan, self._settings)

    def _run_path(self, name: str) -> Path:
        return self._runs_of_training / name

    @property
    def _run_directory(self) -> Path:
        """Return the directory in which the training runs."""
        return self._directory if self._fresh is None else self._fresh.directory

    @property
    def _copy_root(self) -> Path | None:
        return None if self._fresh is None else self._fresh.root

    def _end_stragglers(self) -> None:
        """End the processes that an interrupted training left behind."""
        for run in self._runs_of_training.glob("*"):
            stragglers.end(run)

    def _record(self, name: str) -> RunDirectory:
        self._renew()
        return self._executed(self._plan(name))

    def _replay(self, recording: RunDirectory, name: str) -> RunDirectory:
        return self._executed(self._replay_plan(recording, name))

    def _replay_plan(self, recording: RunDirectory, name: str) -> Plan:
        self._renew()
        return replace(replay_plan(recording, self._run_path(name)), fresh=self._copy_root)

    def _replay_elsewhere(
        self, recording: RunDirectory, usual_seeds: RestoredSeeds, names: Sequence[str], name: str
    ) -> VariedReplay:
        """Replay under the possible ones of these variations; a failed replay counts as a difference."""
        plan = self._replay_plan(recording, name)
        with TemporaryDirectory(prefix="reprokit-elsewhere-", ignore_cleanup_errors=True) as place:
            surroundings = vary(plan, names, Path(place))
            tried = VariedReplay(words=surroundings.words, refused=surroundings.refused, apart=surroundings.apart)
            if not tried.words:
                return tried
            self._say_begun()
            try:
                execute(surroundings.plan, self._interruption, surroundings.enter)
            except ReprokitError as error:
                case = Case(suite=VARIED, name="the replay", outcome=TROUBLE, message=str(error))
                return replace(tried, cases=[case])
        assert plan.output is not None
        self._runs.append(plan.output)
        run = RunDirectory(plan.output)
        cases = [
            *self._comparison_cases(VARIED, recording, run),
            *start_conditions.other_seeds(VARIED, usual_seeds, start_conditions.restored_seeds(run)),
        ]
        return replace(tried, cases=cases)

    def _say_begun(self) -> None:
        """Say which training begins, if somebody watches."""
        self._count.tell(lambda words: say(f"gate: {self._training.name}: {words}"))

    def _executed(self, plan: Plan) -> RunDirectory:
        assert plan.output is not None
        self._say_begun()
        executed = execute(plan, self._interruption, None if self._fresh is None else self._fresh.enter)
        self._runs.append(plan.output)
        _require_success(executed.ended, plan.mode)
        run = RunDirectory(plan.output)
        self._leftovers.examine(plan.output.name, run)
        return run

    # Checks

    def _comparison_cases(self, suite: str, left: RunDirectory, right: RunDirectory) -> Iterator[Case]:
        """Yield a case for each artifact and metric; if nothing can be compared, a case of trouble."""
        try:
            comparison = compare(left.path, right.path, ignores=self._work.ignores)
        except NothingComparable as error:
            yield Case(suite=suite, name=NOTHING_COMPARED, outcome=TROUBLE, message=str(error))
            return
        self._notes += comparison.notes
        self._ignores.append(comparison.ignores)
        self._switched_off.update(left.run.switched_off, right.run.switched_off)
        if comparison.identical and (counts := comparison.tree.bookkeeping()):
            self._notes.append(f"{suite}: nothing but bookkeeping differs: {counted_bookkeeping(counts)}")
        yield from _leaf_cases(suite, comparison)

    def _state_case(self, suite: str) -> Case:
        """Return a case that fails if runs read files of earlier runs: equal results would then prove nothing."""
        leftovers = self._leftovers.pop_problems()
        if not leftovers:
            return Case(suite=suite, name="state", outcome=PASSED, right="no run read what another had left")
        words = listed(leftovers, state_files.SHOWN, "; ")
        if self._training.allow_state:
            self._notes.append(f"allowed: {words}")
            return Case(suite=suite, name="state", outcome=PASSED, right=words)
        return Case(suite=suite, name="state", outcome=FAILED, message=f"{words}; {ADVICE}")

    def _golden(self, recording: RunDirectory, is_identical: bool) -> Iterator[Case]:
        if self._work.golden is None:
            return
        name = self._training.name
        self.key = goldens.machine_key(recording.environment() or {})
        place = self._work.golden / name / self.key
        if self._work.update and not is_identical:
            message = GOLDEN_KEPT
            yield Case(suite=GOLDEN, name="golden", outcome=TROUBLE, message=message)
            return
        if self._work.update:
            goldens.store(recording.path, place)
        if not place.exists():
            machines = ", ".join(goldens.others(self._work.golden, name)) or "none"
            message = (
                f"there is no golden for this machine ({self.key}; there are: {machines}); --update-golden adds it"
            )
            yield Case(suite=GOLDEN, name="golden", outcome=TROUBLE, message=message)
            return
        golden = RunDirectory(place)
        yield from self._comparison_cases(GOLDEN, golden, self._replay(self._relocated(golden), "replay-of-golden"))
        yield self._state_case(GOLDEN)

    def _relocated(self, golden: RunDirectory) -> RunDirectory:
        """Return the golden with paths of this checkout, which may have been recorded in another directory."""
        golden.run.working_directory = str(self._run_directory)
        golden.run.command = list(self._training.command)
        return golden

    def _varied(self, number: int, recording: RunDirectory, replay: RunDirectory | None) -> Iterator[Case]:
        """Yield cases for replays under variations; trouble if the plain replay differs already."""
        names = chosen(self._training.vary)
        suite = VARIED if number == 1 else f"{VARIED} {number}"
        if replay is None:
            message = "not tried, as the replay already differs without variations"
            yield from (Case(suite=suite, name=name, outcome=TROUBLE, message=message) for name in names)
        elif names:
            usual_seeds = start_conditions.restored_seeds(replay)

            def attempt(some: Sequence[str]) -> VariedReplay:
                variations = "all" if len(some) > 1 else some[0]
                return self._replay_elsewhere(recording, usual_seeds, some, f"varied-{number}-{variations}")

            yield from start_conditions.search(suite, names, attempt)

    def _fidelity(self, suite: str, replay: RunDirectory) -> Iterator[Case]:
        fidelity = replay.run.fidelity
        if not self._training.require.fidelity:
            return
        if fidelity is None or not fidelity.requests:
            yield Case(
                suite=suite, name="fidelity", outcome=TROUBLE, message="the replay counted no request for random bytes"
            )
            return
        exact = fidelity.exact == fidelity.requests and not fidelity.unused
        words = answered(fidelity.requests, percent_exact(fidelity))
        words += f", {fidelity.unused} recorded ones were not asked for" if fidelity.unused else ""
        yield _requirement(suite, "fidelity", words, holds=exact)

    def _ranks(self, suite: str, run: RunDirectory) -> Iterator[Case]:
        if not self._training.require.ranks_agree:
            return
        agreements = ranks.agreements(run)
        if not agreements:
            yield Case(suite=suite, name="ranks", outcome=TROUBLE, message=ranks.NO_RANKS)
        for agreement in agreements:
            outcome = RANKS[agreement.state]
            message = "" if outcome == PASSED else agreement.words
            yield Case(
                suite=suite,
                name=f"ranks: {agreement.optimizer}",
                outcome=outcome,
                message=message,
                right=agreement.words,
            )

    def _overhead(self) -> Iterator[Case]:
        limit = self._training.require.overhead
        if limit is None:
            return
        bare, recorded = [], []
        for number in range(BARE_RUNS):
            bare.append(self._bare())
            began = time.monotonic()
            self._record(f"timed-{number + 1}")
            recorded.append(time.monotonic() - began)
        ratio = median(recorded) / median(bare)
        words = f"{ratio:.2f} times as long as bare (medians of {BARE_RUNS} runs in turn; at most {limit:g} is allowed)"
        yield _requirement(REQUIRED, "overhead", words, holds=ratio <= limit)

    def _bare(self) -> float:
        self._renew()
        began = time.monotonic()
        started: list[subprocess.Popen[bytes]] = []

        def start() -> int:
            started.append(subprocess.Popen(self._training.command, cwd=self._run_directory))
            return started[0].pid

        with self._interruption.handing_to(start):
            returncode = started[0].wait()
        ended = ExitStatus(exit_code=returncode) if returncode >= 0 else ExitStatus(signal_number=-returncode)
        _require_success(ended, "bare run")
        return time.monotonic() - began

    def _unpatched(self) -> Iterator[Case]:
        require = self._training.require
        if require.findings is None:
            return
        self._renew()
        plan = replace(self._plan("profile"), profiling=ProfilingFacts(confirm=REPEATS))
        run = self._executed(plan)
        profiled = profiling.analyze(run)
        findings_file.write(run.path, profiled)
        self._findings += tuple(profiled.findings)
        accepted = None
        if require.accepted is not None:
            accepted = requirements.read_accepted(self._work.base / require.accepted)
        yield from requirements.of_profile(profiled, self._settings.patches, accepted)

    def _forbidden(self) -> Iterator[Case]:
        """Judge rules on a run of their own, as saving tensors takes time and disk space."""
        specs = self._training.require.forbid_rules
        if specs:
            self._renew()
            run = self._executed(replace(self._plan("rules"), question=requirements.QUESTION))
            session = requirements.judged_by_rules(run, specs)
            self._findings += tuple(session.findings.values())
            yield from requirements.of_rules(session)


def judge(
    trainings: Iterable[GateTraining], work: GateWork, interruption: Interruption, on_result: ResultHook | None = None
) -> GateVerdict:
    """Run and check all trainings; after an interruption the remaining ones are reported as not checked.

    `on_result` is called with the result of each training, and may add cases.
    """
    started, judged, key = rundir.utc_now(), [], ""
    # Made before the first training, so that a directory that cannot be made loses no result.
    for training, check in [(training, Check(training, work, interruption)) for training in trainings]:
        say(f"gate: {training.name}")
        result = check.judge()
        result = result if on_result is None else on_result(result)
        judged.append(result)
        key = check.key or key
        words = (
            f"{result.outcome()}: {result.unpassed[0].message}"
            if result.unpassed
            else f"passed, {len(result.cases)} cases"
        )
        say(f"gate: {training.name}: {words}")
    is_cut_short = any(result.is_cut_short for result in judged)
    return GateVerdict(
        reprokit=VERSION,
        started=started,
        machine=key,
        trainings=tuple(judged),
        interrupted=interruption.asked if is_cut_short else 0,
    )


def _place_for_runs(place: Path, name: str) -> Path:
    """Create the directory for a training's runs, and say where it is if an earlier gate has its name."""
    with refused_as(CannotWriteReport, place / name, "choose another with -o"):
        path = next_directory(place, name)
    if path.name != name:
        say(f"gate: {name}: {shown(place / name)} is there already; these runs are in {shown(path)}")
    return path


def _unreached_programs(suite: str, *runs: RunDirectory) -> Iterator[Case]:
    """Yield trouble if a program of a run was not recorded: its inputs or outputs may have differed."""
    for run in runs:
        if run.run.out_of_reach:
            message = f"{run.run.kind}: {run.run.out_of_reach_in_words}"
            yield Case(suite=suite, name="programs out of reach", outcome=TROUBLE, message=message)
            return


def _guarded(suite: str, cases: Iterator[Case]) -> Iterator[Case]:
    """Yield the cases; an error becomes a case of the same suite and does not affect others."""
    try:
        yield from cases
    except ReprokitError as error:
        yield Case(suite=suite, name="the training", outcome=TROUBLE, message=str(error))


def _leaf_cases(suite: str, comparison: Comparison) -> Iterator[Case]:
    room = MAX_CASES
    for category in comparison.tree.children:
        if category.name not in COMPARED:
            continue
        if counts := category.bookkeeping():
            words = f"only bookkeeping: {counted_bookkeeping(counts)}"
            yield Case(suite=suite, name=f"{category.name}: bookkeeping", outcome=PASSED, right=words)
        for leaf in category.leaves():
            if leaf.verdict.not_bitwise or leaf.verdict in (Verdict.IDENTICAL, Verdict.NOT_COMPARED):
                room -= 1
                if room > 0 or leaf.verdict is not Verdict.IDENTICAL:
                    yield _case(suite, category.name, leaf)


def _case(suite: str, category: str, leaf: Difference) -> Case:
    outcomes: Mapping[Verdict, Outcome] = {Verdict.IDENTICAL: PASSED, Verdict.NOT_COMPARED: TROUBLE}
    outcome = outcomes.get(leaf.verdict, FAILED)
    return Case(
        suite=suite,
        name=f"{category}: {leaf.name}",
        outcome=outcome,
        message="" if outcome == PASSED else sentence(leaf),
        left=leaf.left,
        right=leaf.right,
    )


def _requirement(suite: str, name: str, words: str, *, holds: bool) -> Case:
    return Case(
        suite=suite, name=name, outcome=PASSED if holds else FAILED, message="" if holds else words, right=words
    )


def _require_success(ended: ExitStatus, run_in_words: str) -> None:
    if ended.exit_code != 0:
        raise ReprokitError(
            f"the training ended {ended.words} ({run_in_words}); a gate needs one that ends with status 0"
        )
