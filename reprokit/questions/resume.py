"""Tells whether an interrupted and resumed training equals the whole one, and which state it lacks if not.

Three runs: the whole training, an interrupted replay of it in a fresh copy of its directory, and the training resumed
on the files of that. All have the same entropy, so only state can differ. The whole run logs its state at every 16th
step, which is enough if the resumed one is equal. Otherwise a replay logs more steps, and parts of its state are
restored in the resumed run, which is executed again: the smallest set that makes it identical is what is missing.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from reprokit.core.errors import CannotResume, ReprokitError
from reprokit.core.messages import TrainingCount, say
from reprokit.core.printable import listed
from reprokit.core.version import VERSION
from reprokit.model.plan import RECORD, Plan, ReplayStart
from reprokit.model.question import InterruptionAsked, Question, StateQuestion, StepRange
from reprokit.model.resumption import EXACT, NOT_EXACT, IgnoredAsDeclared, OtherFact, ResumeFinding
from reprokit.questions.resumed_run import NAMED, ResumedRun, ResumeOutcome, WholeRun, compare_runs
from reprokit.questions.state_answers import DATA, LATENT, LOADER, PARTS, RANDOM, VARIABLES, variable_of
from reprokit.run import early_end
from reprokit.run.checkout_copy import BEFORE, LEFT_OUT, PLACE, FreshCheckouts
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import execute
from reprokit.run.process import ExitStatus
from reprokit.run.replay_plan import replay_plan
from reprokit.run.rundirectory import new_directory
from reprokit.run_files import answers, trails
from reprokit.run_files.names import read as paths_read
from reprokit.run_files.rundir import ANSWERS, RunDirectory
from reprokit.verify.categories.continuation import Continuation
from reprokit.verify.facts import later_differences
from reprokit.verify.ignores import Ignores, IgnoreUse

T = TypeVar("T")

MOMENT = 3 / 8  # share of the steps before the interruption: the first of three epochs is over by then
WINDOW = 16  # steps compared after the first difference, and in runs with restored parts
RESUMED = "resumed"
BRIEF, LOOK = 32, 0.2  # steps after which a resumed run that differs is ended; seconds between polls
INTERRUPTED = "interrupted"  # the directory as the interrupted training left it
UNSEEN = (
    "only steps were compared: the state between them is seen of models of PyTorch, of one optimizer of Keras, and"
    " beside the boosters of XGBoost and LightGBM"
)
UNREAD = "the script keeps more than is read of it: at most 5,000 values, 256 MiB, and objects six deep"
UNSEEDED = "TensorFlow without a seed draws numbers where its state is read: give it one (tf.random.set_seed)"
MAX_FILES = 1000  # listed in a finding
FEWEST, MOST_TRIALS = 3, 40  # trainings that tell whether it is exact; trials that tell what it lacks
MAX_SHRINKING = 20  # trials for a smaller set of variables


class ResumeWork(msgspec.Struct, frozen=True, kw_only=True):
    """The training to be interrupted and resumed, and how."""

    command: tuple[str, ...]
    resume_command: tuple[str, ...]
    directory: Path
    place: Path  # of the runs
    at: int | None = None
    pattern: str = ""
    signal: signal.Signals = signal.SIGINT
    data: tuple[str, ...] = ()
    calendar: bool = True  # whether replays are told the recorded time of day
    ignores: Ignores = Ignores()  # what the user declared that it may differ beside the steps


@dataclass(frozen=True)
class StateSearch:
    """What a search for the missing state came to."""

    missing: Sequence[str] = ()
    is_proved: bool = False
    variables: Sequence[str] | None = None  # those of the script that are missing, if any is proved to be


class ResumeStudy:
    """Executes the runs of a study, one after the other."""

    def __init__(self, work: ResumeWork, interruption: Interruption) -> None:
        self._work, self._interruption = work, interruption
        self._fresh = FreshCheckouts(work.directory, work.place / PLACE, work.data)
        self._runs: dict[str, str] = {}
        self._trials = 0
        self._count = TrainingCount(FEWEST)
        self._ignored = tuple(IgnoreUse(rule, ()) for rule in work.ignores.rules)  # after the first resumed training

    @property
    def _trial(self) -> str:
        """The name of the last run with restored parts."""
        return f"trial-{self._trials}"

    def find(self) -> ResumeFinding:
        """Execute all runs, and write the finding; raises CannotResume if there is nothing to compare."""
        try:
            finding = self._find()
        finally:
            self._fresh.remove()
        answers.write_resumption(self._work.place / "whole", finding)
        return finding

    def _find(self) -> ResumeFinding:
        say(f"this takes {FEWEST} trainings; if they differ, up to {MOST_TRIALS + 1} more say what is missing")
        recording = self._record()
        steps = _steps(recording)
        files, at = self._interrupt(recording, steps, self._interruption_step(steps))
        interrupted = RunDirectory(self._work.place / "interrupted")
        self._say("resuming it on the files that it has left")
        at = min(at, steps - 1)
        with self._watched(recording, at):
            plain = self._resume(recording, RESUMED, Question(state=StateQuestion(), may_stop=True))
        is_brief = early_end.is_ended(plain.path)
        self._require_read(plain, interrupted)
        if not is_brief:
            beside = self._beside_steps(recording, interrupted, plain)
            others, self._ignored = later_differences(beside), beside.ignore_uses
        else:
            others = []
        offset, is_found = ResumedRun(plain).offset(recording, at)
        window = WINDOW + (ResumedRun(plain).first_difference(recording, offset) or 0)
        whole = WholeRun(recording, recording, offset)
        outcome = compare_runs(whole, plain, is_whole=not is_brief)
        differing = [other for other in others if other.compared]
        if differing or not (outcome.is_same and outcome.is_state_compared):
            self._say(f"replaying the whole training up to step {min(offset + window, steps):,}, to see its state")
            whole = WholeRun(recording, self._ask(recording, offset, window, ResumedRun(plain)), offset)
            outcome = compare_runs(whole, plain, is_whole=not is_brief)
        searches = bool(whole.states) and not (outcome.is_same and not differing)
        search = self._search(whole, interrupted, plain, outcome, window, differing) if searches else StateSearch()
        missing, is_proved = search.missing, search.is_proved
        if searches and outcome.has_equal_steps:
            window = steps - offset
        causes = list(outcome.causes)
        without_effect = LATENT - {LOADER, *missing} if is_proved else ()
        described = [
            part
            for part in outcome.described_parts(search.variables, has_other_facts=bool(differing))
            if part.part not in without_effect
        ]
        parts = [replace(part, idle=part.idle and part.part not in missing) for part in described]
        if not (outcome.has_equal_steps or is_proved):
            _require_same(whole)
        if self._trials and not (is_proved or outcome.has_equal_steps):
            trial = compare_runs(whole, RunDirectory(self._work.place / self._trial), window=window)
            causes = [f"in {self._trial}, into which parts that differ were put, {cause}" for cause in trial.causes]
            named = {part.part for part in parts}
            parts += [part for part in trial.described_parts() if part.part not in named]
        notes = [] if is_proved else causes
        if searches and not is_proved and outcome.has_unread_variables:
            notes = [*notes, UNREAD]
        notes = [*notes, *outcome.notes, *whole.notes, *([] if whole.states else [UNSEEN]), *_unseen(recording, plain)]
        return ResumeFinding(
            reprokit=VERSION,
            command=list(self._work.command),
            resume_command=list(self._work.resume_command),
            verdict=EXACT if outcome.is_same and not others else NOT_EXACT,
            whole_steps=steps,
            interrupted_at=at,
            signal=self._work.signal.name,
            files=files,
            resumed_at=offset,
            is_found=is_found,
            compared=outcome.steps,
            first=outcome.first,
            parts=parts,
            missing=list(missing),
            others=others,
            ignores=[IgnoredAsDeclared(**use.document(), words=str(use)) for use in self._ignored],
            proved=is_proved,
            window=min(window, steps - offset),
            trials=self._trials,
            notes=notes,
            runs=self._runs,
        )

    def _say(self, what: str) -> None:
        """Say which training begins."""
        say(f"{self._count.begin()}: {what}")

    def _require_read(self, resumed: RunDirectory, interrupted: RunDirectory) -> None:
        """Raise CannotResume if the resumed training opened none of the files that the interrupted one left."""
        written = interrupted.outputs()
        paths = {os.path.realpath(self._fresh.directory / file.path) for file in written.files} if written else set()
        if (
            paths
            and resumed.run.shim is not None
            and resumed.run.shim.is_loaded
            and not paths & paths_read(resumed.path)
        ):
            raise CannotResume(
                f"the resumed training read none of the files that the interrupted one left, first {min(paths)}: it"
                " began anew; give the command that resumes it (--resume-with)"
            )

    def _beside_steps(self, recording: RunDirectory, interrupted: RunDirectory, resumed: RunDirectory) -> Continuation:
        """Return what is compared beside the steps; the resumed training's files are still there."""
        written = interrupted.outputs()
        paths = [file.path for file in written.files] if written is not None else []
        kept = frozenset(path for path in paths if os.path.lexists(self._fresh.directory / path))
        left = self._fresh.kept(INTERRUPTED) / self._fresh.directory.relative_to(self._fresh.root)
        return Continuation(recording, interrupted, resumed, left, kept, self._work.ignores)

    # Runs

    def _record(self) -> RunDirectory:
        self._say("recording the whole training")
        self._fresh.renew()
        plan = Plan(
            mode=RECORD,
            command=self._work.command,
            working_directory=self._fresh.directory,
            fresh=self._fresh.root,
            output=self._work.place / "whole",
            data=self._work.data,
            calendar=self._work.calendar,
            question=Question(each_step=True, state=StateQuestion(every=WINDOW)),
        )
        ended = self._execute("whole", plan)
        if ended.exit_code != 0:
            raise CannotResume(f"the whole training ended {ended.words}; make it run to its end first")
        return RunDirectory(self._work.place / "whole")

    def _interruption_step(self, steps: int) -> int:
        at = max(1, int(steps * MOMENT)) if self._work.at is None else self._work.at
        if not steps:
            raise CannotResume(
                "no optimizer took a step in the whole training; give a command that trains by PyTorch, TensorFlow,"
                " XGBoost or LightGBM, whose steps are compared"
            )
        if not 0 < at < steps:
            raise CannotResume(f"the whole training takes {steps} steps, so it cannot be interrupted at step {at}")
        return at

    def _interrupt(self, recording: RunDirectory, steps: int, at: int) -> tuple[list[str], int]:
        """Return the files that the interrupted training left, and the number of steps it took."""
        work = self._work
        when = f"once there is a new {work.pattern}" if work.pattern else f"at step {at:,}"
        self._say(f"interrupting a replay of it {when}, by {work.signal.name}")
        asked = InterruptionAsked(
            at=None if work.pattern else at,
            pattern=work.pattern and os.path.join(self._fresh.directory, work.pattern),
            signal=work.signal,
        )
        self._fresh.renew()
        run = self._replay(recording, "interrupted", recording.run.command, Question(interrupt=asked))
        taken = _steps(run)
        if taken >= steps:
            why = f"no new {work.pattern} came before its last step" if work.pattern else "it went on to its end"
            raise CannotResume(f"the training was not interrupted: {why}; choose another moment (--at, --after-file)")
        if ResumedRun(run).first_difference(recording, 0) is not None:
            shared = _shared_files(recording, run)
            why = shared or f"make the training repeat first: reprokit reproduce. {UNSEEDED}"
            raise CannotResume(
                f"the interrupted replay is not the recorded training, so that no state can be blamed; {why}"
            )
        self._fresh.keep(INTERRUPTED)
        files = changed_files(self._fresh.kept(BEFORE), self._fresh.kept(INTERRUPTED))
        if not files:
            raise CannotResume(
                f"the interrupted training has left no file after {taken} steps: there is nothing to resume on;"
                " interrupt it later (--at), or after its first checkpoint (--after-file)"
            )
        return files[:MAX_FILES], taken

    def _resume(self, recording: RunDirectory, name: str, question: Question) -> RunDirectory:
        self._fresh.renew(INTERRUPTED)
        run = self._replay(recording, name, self._work.resume_command, question, is_later=True)
        if not _steps(run):
            why = _shared_files(recording, run) or "give the command that resumes it (--resume-with)"
            raise CannotResume(f"the resumed training took no step; {why}")
        return run

    @contextmanager
    def _watched(self, recording: RunDirectory, at: int) -> Iterator[None]:
        """Let a child process end the resumed run early if its first steps differ: the rest adds nothing."""
        watcher = os.fork()
        if watcher == 0:
            try:
                self._interruption.restore()
                _end_if_different(self._work.place / RESUMED, recording, at)
            finally:
                os._exit(0)
        try:
            yield
        finally:
            os.kill(watcher, signal.SIGKILL)
            os.waitpid(watcher, 0)

    def _ask(self, recording: RunDirectory, offset: int, window: int, resumed: ResumedRun) -> RunDirectory:
        """Replay the whole training up to the steps to be compared, and save its state."""
        self._fresh.renew()
        steps = StepRange(first=offset, last=offset + window - 1)
        state = StateQuestion(keeps=True, calls=resumed.calls, resumed=resumed.variables)
        question = Question(steps=steps, state=state)
        return self._replay(recording, "whole-asked", recording.run.command, question)

    def _replay(
        self, recording: RunDirectory, name: str, command: Sequence[str], question: Question, *, is_later: bool = False
    ) -> RunDirectory:
        """Replay a command; one that goes on later is told the real time, not that of the recorded beginning."""
        place = self._work.place / name
        plan = replay_plan(recording, place, tuple(command), start=ReplayStart.HERE)  # of a copy, as it was left
        plan = replace(plan, calendar=plan.calendar and not is_later)
        orders = tuple(command) == tuple(recording.run.command) and name != RESUMED
        question = replace(question, each_step=True)
        plan = replace(plan, question=question, fresh=self._fresh.root, changed=(), orders=orders)
        ended = self._execute(name, plan)
        ends_early = question.interrupt is not None or question.steps.last is not None
        if ended.exit_code != 0 and not ends_early:
            raise CannotResume(f"the {name} training ended {ended.words}; make the command that resumes it work first")
        return RunDirectory(place)

    def _execute(self, name: str, plan: Plan) -> ExitStatus:
        ended = execute(plan, self._interruption, self._fresh.enter).ended
        self._runs[name] = str(plan.output)
        return ended

    # The proof

    def _search(
        self,
        whole: WholeRun,
        interrupted: RunDirectory,
        plain: RunDirectory,
        outcome: ResumeOutcome,
        window: int,
        others: Sequence[OtherFact],
    ) -> StateSearch:
        """Return the smallest set of parts that makes the resumed run identical, if there is one."""
        fetched = ResumedRun(plain).fetched
        # Where all steps are equal, a trial must end as the whole training does.
        to_end = outcome.has_equal_steps
        is_beside = to_end and bool(others)  # only what is beside the steps differs
        candidates = outcome.all_candidates if is_beside else outcome.candidates
        last = None if to_end else window - 1
        due = _steps(whole.recording) - whole.offset if to_end else min(window, _steps(whole.recording) - whole.offset)

        def is_same_with(parts: Sequence[str], variables: Sequence[str] = outcome.variables) -> tuple[bool, list[str]]:
            if self._trials >= MOST_TRIALS:
                return False, []
            self._trials += 1
            names = listed(variables, NAMED) if VARIABLES in parts else ""
            said = [f"{VARIABLES} ({names})" if part == VARIABLES else part for part in parts]
            self._say(f"resuming it again, with these of the whole training put in: {', '.join(said)}")
            put = str(whole.asked.path / ANSWERS)
            state = StateQuestion(put=put, parts=tuple(parts), variables=tuple(variables), fetched=fetched)
            question = Question(steps=StepRange(last=last), state=state)
            try:
                trial = self._resume(whole.recording, self._trial, question)
            except CannotResume:  # what was put in made the script fail
                return False, []
            outcome = compare_runs(whole, trial, is_whole=to_end, window=sys.maxsize if to_end else window)
            is_same = outcome.is_same and outcome.steps >= due
            is_same = is_same and not (
                is_beside and later_differences(self._beside_steps(whole.recording, interrupted, trial))
            )
            return is_same, outcome.candidates

        beside_variables = [part for part in candidates if part != VARIABLES]
        if to_end and not (is_beside and candidates) and VARIABLES not in candidates:
            return StateSearch()
        # Different batches may be the effect of a generator: try without the batches first. The script itself may
        # have drawn from one before the step, as for the order of an epoch: try with those that are idle since.
        # Variables of the script differ in any training: try without them as long as anything else can be added.
        chosen = (
            candidates
            if others
            else [part for part in beside_variables if part != DATA or set(RANDOM).isdisjoint(candidates)] or candidates
        )
        is_same, more = is_same_with(chosen) if chosen else (False, [])
        more = more if beside_variables or to_end else [*more, DATA]
        is_last = VARIABLES in chosen
        while not is_same:
            due_parts = {*candidates, *chosen, *more, *outcome.idle_generators}
            wider = [part for part in PARTS if part in due_parts and (is_last or part != VARIABLES)]
            if not set(wider) <= set(chosen):
                chosen = wider
                is_same, more = is_same_with(chosen)
            elif is_last:
                break
            else:
                is_last = True
        if not is_same:
            return StateSearch([part for part in candidates if part not in LATENT])
        for part in list(reversed(chosen)) if len(chosen) > 1 else []:
            fewer = [other for other in chosen if other != part]
            if fewer and is_same_with(fewer)[0]:
                chosen = fewer
        if VARIABLES not in chosen:
            return StateSearch(chosen, is_proved=True)
        attempts = iter(range(MAX_SHRINKING))
        by_variable: dict[str, list[str]] = {}
        for name in outcome.variables:
            by_variable.setdefault(variable_of(name), []).append(name)

        def is_enough(groups: Sequence[Sequence[str]]) -> bool:
            return next(attempts, None) is not None and is_same_with(chosen, [*chain(*groups)])[0]

        few = smallest(list(by_variable.values()), is_enough)
        return StateSearch(chosen, is_proved=True, variables=[*chain(*few)])


def smallest(groups: Sequence[T], is_enough: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return fewer groups that are still enough, by leaving out ever smaller pieces (delta debugging)."""
    pieces = 2
    while len(groups) > 1:
        size = -(-len(groups) // pieces)
        all_fewer = [[*groups[:start], *groups[start + size :]] for start in range(0, len(groups), size)]
        fewer = next((fewer for fewer in all_fewer if is_enough(fewer)), None)
        if fewer is not None:
            groups, pieces = fewer, max(pieces - 1, 2)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(groups))
    return groups


def _require_same(whole: WholeRun) -> None:
    """Raise CannotResume if the replay whose state was restored is not the whole training."""
    step = ResumedRun(whole.asked).first_difference(whole.recording, 0)
    if step is not None:
        raise CannotResume(
            "the resumed training is another one; which state it lacks cannot be told, as the replay that reads the"
            f" state of the whole training is another one from step {step} on. {UNSEEDED}"
        )


def _steps(run: RunDirectory) -> int:
    """Return the largest number of steps that an optimizer took."""
    return max((series.count for trail in trails.read(run) for series in trail.series), default=0)


def _end_if_different(run: Path, recording: RunDirectory, at: int) -> None:
    """Wait for the first steps of a running resumed training; end it if they differ from the whole run's."""
    parent, steps = os.getppid(), 0
    while steps < BRIEF and os.getppid() == parent:
        time.sleep(LOOK)
        with suppress(OSError, ReprokitError):  # the run has no trail yet
            steps = _steps(RunDirectory(run))
    resumed = ResumedRun(RunDirectory(run))
    offset, _ = resumed.offset(recording, at)
    if resumed.first_difference(recording, offset, is_within_step=True) is not None:
        early_end.end(run)


def changed_files(before: Path, after: Path) -> list[str]:
    """Return the relative paths of files that are new, or whose bytes have changed."""
    changed = []
    for directory, names, files in os.walk(after):
        names[:] = sorted(name for name in names if name not in LEFT_OUT and name != ".git")
        for name in sorted(files):
            path = Path(directory, name)
            earlier = before / path.relative_to(after)
            if path.is_symlink() or _is_same(earlier, path):
                continue
            changed.append(str(path.relative_to(after)))
    return changed


def _is_same(earlier: Path, path: Path) -> bool:
    try:
        before, after = earlier.stat(), path.stat()
        return before.st_size == after.st_size and (
            before.st_mtime_ns == after.st_mtime_ns or earlier.read_bytes() == path.read_bytes()
        )
    except OSError:
        return False


def place_for(output: Path | None) -> Path:
    """Return a new, empty directory for the runs."""
    return (Path(tempfile.mkdtemp(prefix="reprokit-resume-")) if output is None else new_directory(output)).resolve()


def _shared_files(whole: RunDirectory, other: RunDirectory) -> str:
    """Return which file another training read that the whole one left outside of the copies; empty if none."""
    written = whole.outputs()
    paths = [*written.temporary, *(file.path for file in written.files)] if written is not None else []
    shared = sorted(path for path in paths_read(other.path).intersection(paths) if os.path.isabs(path))
    how = "which lies outside of the copies, so that all trainings share it: let the script write it below its"
    return f"it read {shared[0]}, {how} working directory" if shared else ""


def _unseen(whole: RunDirectory, resumed: RunDirectory) -> Iterator[str]:
    """Yield what of the files is not compared, and which ones all trainings share."""
    texts = dict.fromkeys(text for run in (whole, resumed) if (left := run.outputs()) for text in left.not_compared)
    yield from (f"not compared: {text}" for text in texts)
    if shared := _shared_files(whole, resumed):
        yield f"of the resumed training: {shared}"
