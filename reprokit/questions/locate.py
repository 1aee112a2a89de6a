"""Finds the first operator that gave another result: replays in pairs, with all calls logged, until a pair diverges."""

from __future__ import annotations

import linecache
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from reprokit import knowledge
from reprokit.core.errors import CannotWriteRun, NotReplayable, NotTheRun, reason
from reprokit.core.messages import TrainingCount
from reprokit.core.printable import cut, listed
from reprokit.diff.files import diff
from reprokit.knowledge import Fact
from reprokit.model.divergence import MAX_LISTED, LocatedCall, LocatedDivergence, OutputsDiffer, ProcessDivergence
from reprokit.model.question import KeptOperator, OperatorQuestion, Question, StepRange
from reprokit.model.resumption import OtherFact
from reprokit.profiling import cures
from reprokit.questions import collective_inputs, operator_logs
from reprokit.questions.divergence_text import call_in_words, without_effect
from reprokit.questions.left_keyframes import ask_from, leave
from reprokit.questions.operator_divergence import DivergenceKind, ThreadDivergence, compared_calls, first_of_each
from reprokit.questions.operator_logs import DRAWS, OperatorCall, ProcessLog
from reprokit.questions.proof import ReplayProof, known_parameters, prove, with_end_weights
from reprokit.questions.replays import AnsweredReplay, ask
from reprokit.questions.scratch import scratch
from reprokit.questions.seek import seek, skipped_of
from reprokit.run import agent_lines
from reprokit.run.interruption import Interruption
from reprokit.run.replay_plan import changed_code
from reprokit.run_files import answers
from reprokit.run_files.home import recording_of
from reprokit.run_files.keyframes import Keyframe
from reprokit.run_files.rundir import ANSWERS, TRAIL, RunDirectory
from reprokit.verify.facts import beside_trail
from reprokit.verify.ignores import NO_IGNORES, Ignores

SMALL = 32  # up to this diverging step, all steps from the first are logged
BEFORE, AFTER = 1, 16  # steps logged before and after the one in which runs diverge
LONGEST = 80  # characters of a quoted line of the user's
SAVING_PAIRS = 3  # pairs in which the guilty call is to diverge again while it is saved
COMPILED = ("jit(", "tf.function ", "torch.compile")  # prefixes of calls that execute many operators
ANOTHER = "nothing was compiled: the answer is about another computation than the recorded one"
LOGGED = frozenset(["jax", "tensorflow", "torch"])  # frameworks whose operators can be logged
LOGGED_ARE = "locate sees operators of PyTorch from 2.0 on, TensorFlow and JAX"

KEPT_CALL = Path(__file__).with_name("kept_call.py")  # executes a kept call again

Say = Callable[[str], None]


@dataclass(frozen=True)
class LocateOptions:
    """The options of the locate command."""

    pairs: int = 5
    keep: Path | None = None  # the directory that gets the guilty call's inputs and outputs
    eager: bool = False  # execute compiled functions operator by operator
    outputs: bool = True  # replay again, to compare the guilty call's outputs
    from_start: bool = False  # replay from the first step, and from no keyframe
    ignores: Ignores = NO_IGNORES  # what the user declared that it may differ beside the trail


@dataclass(frozen=True)
class ReplayPair:
    """Two replays with their operator logs."""

    replays: tuple[AnsweredReplay, AnsweredReplay]
    logs: tuple[dict[str, ProcessLog], dict[str, ProcessLog]]
    steps: StepRange

    @cached_property
    def proof(self) -> ReplayProof:
        """What the trails of both replays say of each other, behind the keyframes that they started from."""
        left, right = self.replays
        return prove(left.run, right.run, skipped_of(left.keyframe, right.keyframe))

    @cached_property
    def all_divergences(self) -> list[ThreadDivergence]:
        """The first divergence of each process."""
        return first_of_each(*self.logs)

    @property
    def divergences(self) -> list[ThreadDivergence]:
        """Return the first divergence of each process, without other inputs or calls that changed no parameter."""
        if since := self.equal_until:
            return first_of_each(*self.logs, since=since)
        divergences = self.all_divergences
        if not divergences or not self.proof.holds:
            return divergences
        known = known_parameters(self.replays[0].run)  # TensorFlow's only at some steps
        return [
            divergence
            for divergence in divergences
            if divergence.kind is DivergenceKind.RESULT or divergence.call.step > known.get(divergence.process, -1)
        ]

    @cached_property
    def equal_until(self) -> dict[str, int]:
        """By process, the step until which all results in the trails are equal, if the trails differ behind it."""
        known = known_parameters(self.replays[0].run) if self.proof.diverged else {}  # TensorFlow's only at some steps
        steps = {process: self.proof.holds_until(process) for process in known}
        return {process: step for process, step in steps.items() if step is not None and 0 < step <= known[process] + 1}

    @property
    def without_effect(self) -> list[ThreadDivergence]:
        """Return the first divergence of each process that changed no result in the trails."""
        if self.proof.diverged:
            until = self.equal_until
            return [one for one in self.all_divergences if one.call.step < until.get(one.process, 0)]
        return [] if self.divergences else self.all_divergences

    def first_trail_divergence(self) -> int | None:
        """Return the first step in which the trails of both replays differ."""
        return min((series.step for series in self.proof.diverged), default=None)


def is_locatable(left: RunDirectory, right: RunDirectory) -> bool:
    """Return whether the trails of two runs differ, and their operators can be logged."""
    if any(LOGGED.isdisjoint(_frameworks(run)) for run in (left, right)):
        return False
    return left.has(TRAIL) and right.has(TRAIL) and bool(prove(left, right).diverged)


def locate(
    left: RunDirectory, right: RunDirectory | None, options: LocateOptions, interruption: Interruption, say: Say
) -> LocatedDivergence:
    """Replay both runs in pairs, or one recording twice each time, and return where they diverge first.

    The answer is also written to the directory of the second run, for reports.
    """
    search = _LocateSearch(left, right, options, interruption, say)
    with _place(search.recordings[1]) as place:
        divergence = search.run(place)
    try:
        answers.write_divergence(right or left, divergence)
    except CannotWriteRun as error:
        say(f"reports will not show this: {error}")
    return divergence


@contextmanager
def _place(recording: RunDirectory) -> Iterator[Path]:
    """Make a temporary directory beside a recording, which keyframes may be left in; elsewhere if nobody may write."""
    directory = recording.path.absolute().parent
    if os.access(directory, os.W_OK):
        with scratch(".locate-", directory, recording) as place:
            yield place
    else:
        with tempfile.TemporaryDirectory(prefix="reprokit-locate-", ignore_cleanup_errors=True) as name:
            yield Path(name)


class _LocateSearch:
    def __init__(
        self,
        left: RunDirectory,
        right: RunDirectory | None,
        options: LocateOptions,
        interruption: Interruption,
        say: Say,
    ) -> None:
        self._runs = left, right or left
        self.recordings = (_recording(left), left if right is None else _recording(right))
        if right is None:
            self.recordings = self.recordings[0], self.recordings[0]
        self._options, self._interruption, self._say = options, interruption, say
        self._count = TrainingCount(2 * options.pairs, may_be_fewer=True)
        proof = with_end_weights(prove(left, right), left, right) if right is not None else ReplayProof({})
        diverged = proof.diverged
        self._are_equal = proof.holds  # the recorded trails, so that one pair that is both runs settles it
        self._step = self._recorded_step = min((series.step for series in diverged), default=None)
        self._is_eager = options.eager
        self._compiled: LocatedCall | None = None  # whose operators were looked at
        self._notes: dict[str, None] = {ANOTHER: None} if options.eager else {}

    def run(self, place: Path) -> LocatedDivergence:
        """Replay in pairs until one diverges, then save the guilty call of another pair."""
        self._require_operators()
        self._require_code()
        number = 0
        for number in range(1, self._options.pairs + 1):
            shutil.rmtree(place / str(number - 1), ignore_errors=True)
            pair = self._pair(place / str(number), f"pair {number} of up to {self._options.pairs}")
            divergences = pair.divergences
            if divergences:
                pair = self._inside(pair, place / "eager")
                divergences = pair.divergences
                is_kept = self._options.outputs and divergences[0].kind is DivergenceKind.RESULT
                outputs = self._saved_outputs(divergences[0], place) if is_kept else None
                return self._document(pair, divergences, number, outputs)
            self._move_window(pair)
            if any(replay.changes for replay in pair.replays):
                self._require_proof(pair)
            if self._are_equal and all(replay.proof.holds for replay in pair.replays):
                break
        self._require_proof(pair)
        return self._document(pair, [], number, None)

    def _inside(self, pair: ReplayPair, place: Path) -> ReplayPair:
        """Return a pair that executes a located compiled call by operators if the trails find it to be the runs."""
        located = pair.divergences[0]
        if self._is_eager or not located.call.operator.name.startswith(COMPILED):
            return pair
        if not all(recording.has(TRAIL) for recording in self.recordings):
            self._notes["with --eager its operators are looked at, in another computation"] = None
            return pair
        self._is_eager = True
        try:
            eager = self._pair(place, "looking into what was compiled")
        except (NotReplayable, NotTheRun) as error:
            why = reason(error)
        else:
            first = next(iter(eager.divergences), None)
            last = first or located
            why = _why_other(eager, last.process, last.call.step)
            if first is not None and not why:
                self._compiled = _process(located).call
                return eager
            where = "nothing parted" if first is None else f"the first to part is {call_in_words(_process(first).call)}"
            why = f"executed eagerly, {where}{f'; but {why}' if why else ''}"
        self._is_eager = False
        self._notes[f"the operators within the compiled call are not known: {why}"] = None
        return pair

    def _require_operators(self) -> None:
        """Refuse recordings of which it is known that none of their frameworks' operators can be logged."""
        for recording in dict.fromkeys(self.recordings):
            names = _frameworks(recording)
            if names and LOGGED.isdisjoint(names) and not recording.has(TRAIL):
                raise NotReplayable(f"{recording.path} used {listed(sorted(names), 3)}, and {LOGGED_ARE}")

    def _require_code(self) -> None:
        """Refuse recordings whose code is another by now, before anything is replayed."""
        for recording in dict.fromkeys(self.recordings):
            if changes := changed_code(recording):
                raise NotTheRun(
                    f"no replay would be {recording.path}; changed since the recording: {listed(changes, 3, '; ')}:"
                    " bring the recorded version back, keep each version under a name of its own, or record again"
                )

    def _pair(self, place: Path, title: str, keep: KeptOperator | None = None) -> ReplayPair:
        steps = _window(self._step)
        question = Question(
            steps=steps,
            to_end=self._step is None,
            eager=self._is_eager,
            operators=OperatorQuestion(keep=keep),
        )
        self._say(f"{title}: replaying twice, logging operators of steps {steps.first} to {steps.last}")
        place.mkdir()
        replays = tuple(
            self._replay(recording, question, place / side)
            for side, recording in zip(("left", "right"), self.recordings, strict=True)
        )
        for replay, recording in zip(replays, self.recordings, strict=True):
            self._note_changes(replay)
            if not recording.has(TRAIL):
                self._notes[f"{recording.path} has no trail: nothing proves that its replays are that run"] = None
            elif not replay.proof.steps:
                ended = replay.launch_result.ended
                end = f" (it ended {ended.words})" if ended.exit_code != 0 else ""
                raise NotTheRun(
                    f"a replay of {recording.path} took none of its steps{end}, so it is not that run;"
                    f" {_changes(replay)}, or it read a file that an earlier run left, as a checkpoint: remove that, or"
                    " record again"
                )
        pair = ReplayPair((replays[0], replays[1]), (_logs(replays[0]), _logs(replays[1])), steps)
        if not any(pair.logs):
            raise NotReplayable(_no_log(replays[0]))
        return pair

    def _replay(self, recording: RunDirectory, question: Question, place: Path) -> AnsweredReplay:
        self._count.tell(self._say)
        keyframe = self._keyframe(recording, question.steps.first)
        made_by = ask if self._is_eager else partial(ask_from, keyframe)
        replay = made_by(recording, question, place, self._interruption, is_silent=True, needs_proof=False)
        leave(replay, recording)
        return replay

    def _keyframe(self, recording: RunDirectory, first: int) -> Keyframe | None:
        """Return the keyframe from which a recording is replayed, and note it."""
        if self._step is None or self._options.from_start or self._is_eager:
            return None
        chosen = seek(recording, first)
        if chosen.keyframe is not None:
            where = f"from the keyframe of step {chosen.keyframe.step:,}"
        else:
            where = f"from the first step: {chosen.why}" if chosen.why else ""
        self._notes.update({f"{recording.path} was replayed {where}": None} if where else {})
        return chosen.keyframe

    def _note_changes(self, replay: AnsweredReplay) -> None:
        """Note what makes a replay a different training from its recording, and what it could not see."""
        run = replay.run.run
        self._notes.update(dict.fromkeys(f"changed since the recording: {change}" for change in replay.changes[:20]))
        agent_warnings = (f"the agent: {warning.text}" for warning in agent_lines.read(replay.run.path).warnings)
        warnings = (warning.text for warning in run.warnings[:MAX_LISTED])
        self._notes.update(dict.fromkeys([*warnings, *agent_warnings]))
        if replay.launch_result.ended.exit_code != 0:
            self._notes[f"a replay did not end well: {replay.launch_result.ended.words}"] = None

    def _move_window(self, pair: ReplayPair) -> None:
        """Log other steps in the next pair, if the trails of this pair differ in unlogged steps."""
        step = pair.first_trail_divergence()
        if step is not None and not pair.steps.first <= step <= (pair.steps.last or step):
            self._say(f"the replays part in step {step}, beyond the steps that were logged")
            self._step = step

    def _require_proof(self, pair: ReplayPair) -> None:
        """Refuse the verdict that nothing diverges if the replays are not their recordings."""
        for replay, recording in zip(pair.replays, self.recordings, strict=True):
            if not replay.proof.diverged:
                continue
            first = replay.proof.diverged[0]
            where = f"from step {first.step} on ({first.quantity})"
            if self._is_eager or _is_other_computation(pair):
                how = "in which functions were executed operator by operator"
                self._notes[f"the replays of {recording.path}, {how}, are not that run {where}"] = None
            else:
                raise NotTheRun(
                    f"no replays of {recording.path} parted, and they are not that run {where}; {_changes(replay)}:"
                    " record it again"
                )

    def _saved_outputs(self, divergence: ThreadDivergence, place: Path) -> OutputsDiffer | None:
        """Replay until the guilty operator diverges again with its calls saved, and compare their outputs."""
        where = divergence.call.place.where[:1]
        keep = KeptOperator(operator=divergence.call.operator.name, place=where[0][:2] if where else ())
        for number in range(1, SAVING_PAIRS + 1):
            pair = self._pair(
                place / f"kept-{number}", f"keeping {keep.operator}, pair {number} of up to {SAVING_PAIRS}", keep
            )
            for repeated in pair.divergences[:1]:
                files = [_files(pair, repeated, side) for side in (0, 1)]
                if repeated.kind is DivergenceKind.RESULT and all(
                    path.exists() for side_files in files for path in side_files
                ):
                    return self._compare(files)
            shutil.rmtree(place / f"kept-{number}", ignore_errors=True)
        self._notes["the call did not part again while its inputs and outputs were kept, so they are not"] = None
        return None

    def _compare(self, files: list[tuple[Path, Path]]) -> OutputsDiffer | None:
        tree = diff(files[0][1], files[1][1])
        leaves = [leaf.figures for leaf in tree.leaves() if leaf.verdict.differs and "elements" in leaf.figures]
        if self._options.keep is not None:
            for side, pair in zip(("left", "right"), files, strict=True):
                (self._options.keep / side).mkdir(parents=True)
                for path, name in zip(pair, ("inputs", "outputs"), strict=True):
                    shutil.copyfile(path, self._options.keep / side / f"{name}.safetensors")
                call = pair[0].with_suffix(".call")  # of PyTorch
                if call.exists():
                    shutil.copyfile(call, self._options.keep / side / "call.json")
                    shutil.copyfile(KEPT_CALL, self._options.keep / side / "call.py")
        if not leaves:
            return None
        ulps = [leaf["largest_ulp"]["value"] for leaf in leaves if leaf.get("largest_ulp")]
        return OutputsDiffer(
            elements=sum(leaf["elements"] for leaf in leaves),
            differing=sum(leaf["differing"] for leaf in leaves),
            largest_ulp=max((ulp for ulp in ulps if isinstance(ulp, int)), default=None),
        )

    def _document(
        self, pair: ReplayPair, divergences: list[ThreadDivergence], pairs: int, outputs: OutputsDiffer | None
    ) -> LocatedDivergence:
        self._notes.update(dict.fromkeys(collective_inputs.notes(divergences[:MAX_LISTED], *pair.logs)))
        for divergence in divergences[:1]:
            self._note_proof(pair, divergence)
            if divergence.kind is DivergenceKind.RESULT and divergence.has_unread_values:
                self._notes[
                    "not all that goes into this call or comes out of it could be read: an input may differ"
                ] = None
            if divergence.has_other_program:
                self._notes[
                    "both replays compiled it to different code: the script or a number in it differs, or the compiler"
                    " chose otherwise"
                ] = None
        for divergence in pair.without_effect[:MAX_LISTED]:
            self._notes[without_effect(_process(divergence), pair.proof.results)] = None
        facts = (
            list(_facts(divergences[0].call)) if divergences and divergences[0].kind is DivergenceKind.RESULT else []
        )
        subject = divergences[0].call.operator.name if divergences else ""
        patches = [cure.patch for fact in facts for cure in cures.of_fact(fact, subject) if cure.patch]
        return LocatedDivergence(
            verdict="parted" if divergences else "same",
            left=str(self._runs[0].path),
            right=str(self._runs[1].path),
            run_ids=list(dict.fromkeys(run.run.run_id for run in self._runs)),
            steps=pair.steps,
            pairs=pairs,
            calls=compared_calls(*pair.logs),
            proved=all(replay.proof.holds for replay in pair.replays),
            results=list(pair.proof.results),
            processes=[_process(divergence) for divergence in divergences[:MAX_LISTED]],
            compiled=self._compiled,
            outputs=outputs,
            known=[fact.id for fact in facts],
            cures=list(dict.fromkeys(patches)),
            notes=list(self._notes),
            beside_trail=[] if divergences else self._beside_trail(pair),
        )

    def _beside_trail(self, pair: ReplayPair) -> list[OtherFact]:
        """Return what else differs in both runs, or in both replays of the only one if these went on to their ends."""
        if self._runs[0].path != self._runs[1].path:
            return beside_trail(*self._runs, self._options.ignores)
        left, right = pair.replays
        return right.beside_trail(left.run, self._options.ignores) if left.is_whole else []

    def _note_proof(self, pair: ReplayPair, divergence: ThreadDivergence) -> None:
        """Note if a replay had diverged from its recording before the located call."""
        for replay, recording in zip(pair.replays, self.recordings, strict=True):
            until = replay.proof.holds_until(divergence.process) if recording.has(TRAIL) else None
            if until is not None and until < divergence.call.step:
                where = f"is not that run from step {until} on, before this call"
                self._notes[f"the replay of {recording.path} {where}: the answer is about the replays"] = None
        if self._recorded_step is not None and divergence.call.step < self._recorded_step:
            self._notes[
                f"the runs themselves part in step {self._recorded_step}, after this call: it need not be the reason"
            ] = None


def _recording(run: RunDirectory) -> RunDirectory:
    return RunDirectory(recording_of(run))


def _frameworks(run: RunDirectory) -> set[str]:
    """Return the frameworks that a training had imported, as far as that is known."""
    names = (run.environment() or {}).get("frameworks")
    return set(names) if isinstance(names, dict) else set()


def _window(step: int | None) -> StepRange:
    first = 0 if step is None or step <= SMALL else step - BEFORE
    return StepRange(first=first, last=(step or 0) + AFTER)


def _logs(replay: AnsweredReplay) -> dict[str, ProcessLog]:
    return operator_logs.read(replay.run)


def _no_log(replay: AnsweredReplay) -> str:
    warnings = agent_lines.read(replay.run.path).warnings
    reasons = [f"the agent: {warning.text}" for warning in warnings if warning.code == operator_logs.NOT_LOGGED]
    return f"no operator was logged in the replays: {next(iter(reasons), LOGGED_ARE)}"


def _changes(replay: AnsweredReplay) -> str:
    """Return the words for what may have made a replay another run."""
    if not replay.changes:
        return "code, data or libraries may differ"
    return f"changed since the recording: {listed(replay.changes, 3, '; ')}"


def _is_other_computation(pair: ReplayPair) -> bool:
    """Return whether the logged operators ran differently in the recording: those of TensorFlow's graphs."""
    calls = (
        call for log in pair.logs for process in log.values() for thread in process.threads.values() for call in thread
    )
    return any(call.operator.framework == "tensorflow" and call.place.node for call in calls)


def _why_other(pair: ReplayPair, process: str, step: int) -> str:
    """Return why the trails do not find eager replays to be the runs, in at least one step and up to this one."""
    for replay in pair.replays:
        until = replay.proof.holds_until(process)
        if until is not None and (until < step or not until):
            quantities = [f", by its {one.quantity}" for one in replay.proof.diverged if one.process == process]
            return f"that is not the recorded run from step {until} on{''.join(quantities[:1])}"
    return ""


def _files(pair: ReplayPair, divergence: ThreadDivergence, side: Literal[0, 1]) -> tuple[Path, Path]:
    """Return the files of the located call's inputs and outputs."""
    call = divergence.call if side == 0 else divergence.other
    assert call is not None
    stem = pair.logs[side][divergence.process].stem
    base = pair.replays[side].run.path / ANSWERS / f"{stem}-{call.number}"
    return base.with_name(base.name + ".inputs"), base.with_name(base.name + ".outputs")


def _process(divergence: ThreadDivergence) -> ProcessDivergence:
    return ProcessDivergence(
        process=divergence.process,
        kind=divergence.kind.value,
        call=_call(divergence.call, divergence.thread, divergence.position),
        before=None
        if divergence.before is None
        else _call(divergence.before, divergence.thread, max(divergence.position - 1, 0)),
        draws=bool(divergence.call.flags & DRAWS),
        more=divergence.more,
        calls=divergence.calls,
        varying=divergence.varying,
        other=None
        if divergence.other is None or divergence.other.is_same(divergence.call)
        else _call(divergence.other, divergence.thread, divergence.position),
    )


def _call(call: OperatorCall, thread: str, position: int) -> LocatedCall:
    operator = call.operator
    tensors = [f"{dtype} {list(shape)}" for dtype, shape in zip(operator.dtypes, operator.shapes, strict=False)]
    return LocatedCall(
        operator=operator.name,
        overload=operator.overload,
        framework=operator.framework,
        device=operator.device,
        phase=call.place.phase,
        node=call.place.node,
        where=list(call.place.where),
        text=cut(linecache.getline(*call.place.where[0][:2]).strip(), LONGEST) if call.place.where else "",
        thread=thread,
        step=call.step,
        position=position,
        inputs=tensors,
    )


def _facts(call: OperatorCall) -> Iterator[Fact]:
    """Yield the known reasons why a call can differ on one machine."""
    operator = call.operator
    facts = knowledge.matching_operator(
        knowledge.load(),
        operator.framework,
        operator.version,
        operator.name,
        operator.device,
        operator.attributes,
        call.place.phase,
        overload=operator.overload,
        dtypes=operator.dtypes,
    )
    yield from (fact for fact in facts if fact.differs_on_one_machine)
