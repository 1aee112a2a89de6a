"""Records or replays the entropy of a command: loads the shim into it, and runs the supervisor beside it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from reprokit.core import errors
from reprokit.core.messages import say, warn
from reprokit.model import states
from reprokit.model.plan import RECORD, REPLAY, past_tense
from reprokit.model.run import Fidelity, ProfileFacts
from reprokit.model.run_warning import RunWarning
from reprokit.model.states import WITHOUT_SUPERVISOR, Uncovered, off
from reprokit.run import shim_plan
from reprokit.run.part import Closing, Launch, Preparation, RunPart, Watch
from reprokit.run.process import Termination
from reprokit.run.rundirectory import shown
from reprokit.run.supervisor import LostProgramSocket, Supervisor
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

MAX_REASON = 4096  # bytes read of the file in which the shim reports why a strict replay stopped
OUTLIVING_PATIENCE = 60  # seconds
NO_REASON = "the training asked for entropy that the recording does not hold; replay with --policy derive"


class ShimPart(RunPart):
    """Shim and supervisor of a run, and what they have recorded or replayed."""

    _supervisor: Supervisor | None = None
    _unreached: LostProgramSocket
    _not_loaded = ""  # why the shim is not loaded in the command

    def prepare(self, preparation: Preparation) -> None:
        path, paths = preparation.new_run.path, preparation.paths
        shim_plan.write(path / rundir.SHIM_PLAN, self._plan, paths.preload, paths.bootstrap)
        (path / rundir.ENTROPY).mkdir(mode=0o700)

    def arm(self, launch: Launch) -> None:
        """Create the supervisor; it must not take rights away from a command that needs them."""
        self._unreached = LostProgramSocket(launch.path)
        if self._plan.supervisor:
            may_forbid = not launch.command.refusal.gains_rights
            self._supervisor = Supervisor(launch.path, may_forbid_rights=may_forbid, sees_exec=not launch.is_traced)
        launch.supervisor = self._supervisor

    def started(self, launch: Launch) -> None:
        """Record the supervisor's state; warn if the command's own entropy is not covered."""
        run, refusal = launch.run, launch.command.refusal
        self._not_loaded = refusal.why
        supervisor = self._supervisor
        state = WITHOUT_SUPERVISOR if supervisor is None else supervisor.state or off("it was not started")
        run.supervisor = state
        if refusal.why and (refusal.is_foreign or not state.is_on):
            text = f"the command's own requests: {refusal.why}, supervisor {state.words}"
            run.uncovered.append(Uncovered(source="command", text=text))
            consequence = f"its entropy is not {past_tense(run.kind)}: supervisor {state.words}"
            warn(f"the shim cannot load: {refusal.why}; {consequence}", "shim-not-loaded")

    @property
    def _is_strict(self) -> bool:
        return self._plan.mode == REPLAY and self._plan.policy == "strict"

    def watches(self) -> Iterable[Watch]:
        """Return what ends a strict replay that lacks entropy."""
        return (Termination(self._must_stop),) if self._is_strict else ()

    def _must_stop(self) -> bool:
        return _is_written(self._unreached.run_directory / rundir.STOPPED) or bool(self._unreached.receive())

    def ended(self, closing: Closing) -> None:
        from reprokit.run.stragglers import outliving

        run, supervisor = closing.run, self._supervisor
        closing.goes_on = _goes_on(closing.path, supervisor) and not self._awaited(closing)
        run.outliving = outliving(closing.path) if closing.goes_on else []
        texts = supervisor.stop() if supervisor is not None else ()
        run.warnings.extend(RunWarning(text, "gains-no-rights") for text in texts)
        run.out_of_reach = self._unreached.close()
        if self._is_strict:
            reason_file = closing.path / rundir.STOPPED
            stopped = _reason(reason_file) if reason_file.exists() else run.out_of_reach_in_words
            if stopped:
                closing.failure = errors.ReplayStopped(stopped)
                run.warnings.append(RunWarning(f"the strict replay was stopped: {stopped}", closing.failure.slug))

    def _awaited(self, closing: Closing) -> bool:
        """Wait for programs that outlive a continued run: what it skipped is put in once nobody writes to it."""
        from reprokit.run.skipped_steps import is_at_keyframe

        if self._plan.continues is None or not (self._plan.continues.step and is_at_keyframe(closing.path)):
            return False
        say(f"waiting for programs that outlive the command: at most {OUTLIVING_PATIENCE} seconds, or until Ctrl-C")
        deadline = monotonic() + OUTLIVING_PATIENCE
        while goes_on := _goes_on(closing.path, self._supervisor):
            if closing.interrupted() or monotonic() > deadline:
                break
        return not goes_on

    def finish(self, closing: Closing) -> None:
        from reprokit import entropy

        run, directory, not_loaded = closing.run, closing.path / rundir.ENTROPY, self._not_loaded
        counts = entropy.count(directory)
        if not not_loaded and not entropy.root_loaded(directory, counts):
            not_loaded = "the command's own process did not load it"
            is_supervised = run.supervisor is not None and run.supervisor.is_on
            rest = "the supervisor" if is_supervised else "nothing"
            closing.warn(f"the shim was not loaded: {not_loaded}; {rest} answered its requests", "shim-not-loaded")
        run.shim = states.not_loaded(not_loaded) if not_loaded else states.LOADED
        if run.out_of_reach:
            run.uncovered.append(Uncovered(source="out-of-reach", text=run.out_of_reach_in_words))
            closing.show(run.out_of_reach_in_words, "out-of-reach")
        for text in entropy.gave_up(directory, counts):
            closing.warn(text, "process-not-recorded")
        for text in entropy.withheld_runtimes(directory, counts):
            closing.warn(text, "runtime-withheld")
        if fresh := entropy.fresh_requests(directory):
            stopped = "the supervisor was stopped, short of descriptors or not let in"
            closing.warn(f"{stopped}: {fresh} requests got fresh bytes", "supervisor-stopped")
        for text in entropy.full_calendars(directory, counts):
            run.uncovered.append(Uncovered(source="calendar", text=text))
            say(text)
        if self._plan.replay_of is not None:
            recording = RunDirectory(Path(self._plan.replay_of.path))
            fidelity = entropy.fidelity(directory, recording.path / rundir.ENTROPY, counts, recording.run.profile)
            if self._plan.continues:
                say(f"entropy requests: {_given_again(fidelity, entropy.summarize(directory, counts))}")
            else:
                run.fidelity = fidelity
                say(f"entropy requests: {fidelity.words}")
                if self._plan.clock:
                    say(f"reads of the clock: {fidelity.clock} as recorded, {fidelity.clock_past} beyond")
        facts = entropy.summarize(directory, counts)
        if closing.goes_on:
            facts = msgspec.structs.replace(facts, sealed=False)
        if self._plan.kind == RECORD:
            run.profile = facts
        if facts.sealed:  # otherwise a running process may write more lines
            with suppress(OSError):  # first: what starts from now on writes none
                (directory / rundir.OVER).touch(mode=0o600)
            closing.is_over = True

    def leave(self, closing: Closing) -> None:
        if not self._plan.is_scratch:
            say(f"run: {shown(closing.path)}")


def _given_again(fidelity: Fidelity, facts: ProfileFacts) -> str:
    """Return how many requests of a continued run were answered as recorded, and how many are new."""
    recorded = fidelity.exact + fidelity.moved + fidelity.unused
    words = f"{fidelity.exact:,} as recorded, {facts.events - recorded:,} new"
    words += f", {fidelity.moved:,} moved" if fidelity.moved else ""
    return words + (f", {fidelity.unused:,} recorded ones not asked for" if fidelity.unused else "")


def _goes_on(path: Path, supervisor: Supervisor | None) -> bool:
    """Return whether a program of the run still runs after its command has ended."""
    if supervisor is not None and supervisor.is_on:
        return supervisor.has_programs()
    from reprokit.run.stragglers import has_stragglers

    return has_stragglers(path)


def _is_written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _reason(reason_file: Path) -> str:
    try:
        with open(reason_file, "rb") as file:
            reason = file.read(MAX_REASON).decode("utf-8", "replace").strip()
    except OSError:
        reason = ""
    return reason or NO_REASON


PART = ShimPart
