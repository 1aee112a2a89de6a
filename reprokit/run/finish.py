"""Closes a run: collects its results and writes run.json for the last time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from reprokit import entropy
from reprokit.core.errors import ReprokitError, reason
from reprokit.model import states
from reprokit.model.agent_warning import by_cause
from reprokit.model.outputs import OutputsFile
from reprokit.model.plan import RECORD, RUN, Plan
from reprokit.model.run import FINISHED, Fidelity, ProcessKilled, ReplayOf, RunFile, SignalSent
from reprokit.model.states import Uncovered
from reprokit.run import agent_lines, modules, outputs
from reprokit.run.host import EnvironmentCollector
from reprokit.run.messages import say, warn
from reprokit.run.process import Child, ExitStatus
from reprokit.run_files import ledgers as sample_ledgers
from reprokit.run_files import rundir, trails
from reprokit.run_files import unflushed as pending_lines
from reprokit.run_files.rundir import RunDirectory

if TYPE_CHECKING:
    from reprokit.run.profile_run import ProfiledRun
    from reprokit.run.prove import Tracing

T = TypeVar("T")
TOO_OLD = re.compile(r"python(2(\.\d+)?|3\.[0-6])m?")  # interpreters that the agent does not support
MAX_NAMED = 10  # private keys named in one warning
MAX_SIGNALS_READ = 1 << 20  # bytes read of the list of signals
MAX_SIGNALS = 10_000
SIGNAL = re.compile(rb"([1-9]|[1-5]\d|6[0-4]) (-?[1-9]\d{0,9})")
LITTLE = 64 << 10  # free bytes below which a disk counts as full


class RecordingState(msgspec.Struct, frozen=True):
    """What closing a recorded or replayed run needs to know of its command, tracer and profiler."""

    not_loaded: str = ""  # why the shim is not loaded in the command
    goes_on: bool = False  # a program of the run outlives the command, and may still request entropy
    tracing: Tracing | None = None
    profiled: ProfiledRun | None = None


class RunCompanion(Protocol):
    """A watch that runs beside the training, and gets some time to finish after its end."""

    def __call__(self, child: Child) -> None:
        """Poll the progress of the training."""

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Return when the user's commands ran beside the training, in nanoseconds since 1970."""

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Finish the remaining work; return what went wrong."""


class Finish:
    """The end of one run. Each step may fail on its own: the training's exit status is passed on all the same."""

    def __init__(
        self,
        plan: Plan,
        path: Path,
        run: RunFile,
        exit_status: ExitStatus,
        interrupted: Callable[[], bool],
        companions: Sequence[RunCompanion] = (),
        recording_state: RecordingState | None = None,
        *,
        has_outputs: bool = True,
    ):
        self._plan, self._path, self._run, self._interrupted = plan, path, run, interrupted
        self.ended, self._companions = exit_status, companions
        self._recording_state, self._has_outputs = recording_state, has_outputs
        self._fallback = None if plan.capture is None else plan.capture.fallback_of(path)
        self._disk_is_full = False  # the disk, at the end

    def close(self, start: float, environment_collector: EnvironmentCollector | None) -> None:
        """Complete run.json and write it, with everything else that is kept of the run."""
        run = self._run
        self._attempt(self._use_reserve)
        run.exit_code, run.signal = self.ended.exit_code, self.ended.signal_name
        run.duration, run.ended = time.monotonic() - start, rundir.utc_now()
        recording_state = self._recording_state
        if recording_state is not None:
            self._attempt(lambda: self._write_proof(recording_state.tracing))
            self._attempt(lambda: self._finish_profiling(recording_state))
            self._attempt(lambda: self._finish_entropy(recording_state))
        elif self._plan.observed:
            self._attempt(self._seal_metrics)
        self._attempt(lambda: self._finish_agent(environment_collector))
        if self._has_outputs:
            self._attempt(self._collect_outputs)
        if run.outliving:
            say(run.outliving_in_words)
        if recording_state is not None:
            run.signals = self._attempt(lambda: _signals_sent(self._path)) or []
            run.killed = self._attempt(lambda: _killed(self._path, self.ended)) or []
            self._attempt(self._collect_modules)
            self._attempt(self._report_proof)
        for companion in self._companions:
            for warning in self._attempt(partial(companion.finish, self._interrupted)) or ():
                self._warn(warning)
        self._attempt(self._collect_snapshots)
        question, has_trail = self._plan.question, (self._path / rundir.TRAIL).exists() or not self._plan.trail.is_on
        if question is not None and question.tensors is not None and not (self.ended.exit_code or has_trail):
            self._warn("tensors are saved by steps of PyTorch, TensorFlow, XGBoost or LightGBM, of which none was seen")
        run.status = FINISHED
        self._attempt(lambda: rundir.write_json(self._path / rundir.RUN, run))

    def _use_reserve(self) -> None:
        """Free the reserved disk space; warn if the disk is full, as lines of the agent's may then be lost."""
        file_system = os.statvfs(self._path)
        self._disk_is_full = file_system.f_bavail * file_system.f_frsize < LITTLE
        if self._disk_is_full:
            self._warn("the disk is full: metrics that the training wrote last may be missing")
        (self._path / rundir.RESERVE).unlink(missing_ok=True)

    def _attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except (ReprokitError, MemoryError) as error:
            self._warn(reason(error))
        except Exception as error:  # no failure of ours may affect the training's result
            self._warn(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {reason(error)}")
        return None

    def _warn(self, text: str) -> None:
        self._run.warnings.append(text)
        self._show(text)

    def _show(self, text: str) -> None:
        """Print a warning that the run directory holds elsewhere."""
        if (
            self._plan.capture is None or self._plan.capture.redo is None
        ):  # in a re-executed step the result file reports it
            warn(text)

    def _finish_entropy(self, recording_state: RecordingState) -> None:
        run, directory, not_loaded = self._run, self._path / rundir.ENTROPY, recording_state.not_loaded
        counts = entropy.count(directory)
        if not not_loaded and not entropy.root_loaded(directory, counts):
            not_loaded = "the command's own process did not load it"
            is_supervised = run.supervisor is not None and run.supervisor.is_on
            rest = "the supervisor" if is_supervised else "nothing"
            self._warn(f"the shim was not loaded: {not_loaded}; {rest} answered its requests")
        run.shim = states.not_loaded(not_loaded) if not_loaded else states.LOADED
        if run.out_of_reach:
            run.uncovered.append(Uncovered(source="out-of-reach", text=run.out_of_reach_in_words))
            self._show(run.out_of_reach_in_words)
        for warning in (*entropy.gave_up(directory, counts), *entropy.withheld_runtimes(directory, counts)):
            self._warn(warning)
        if fresh := entropy.fresh_requests(directory):
            self._warn(
                f"the supervisor was stopped, short of descriptors or not let in: {fresh} requests got fresh bytes"
            )
        for text in entropy.full_calendars(directory, counts):
            run.uncovered.append(Uncovered(source="calendar", text=text))
            say(text)
        if self._plan.replay_of is not None:
            recording = RunDirectory(Path(self._plan.replay_of.path))
            run.fidelity = entropy.fidelity(directory, recording.path / rundir.ENTROPY, counts, recording.run.profile)
            say(f"entropy requests: {in_words(run.fidelity)}")
            if self._plan.clock:
                say(f"reads of the clock: {run.fidelity.clock} as recorded, {run.fidelity.clock_past} beyond")
        facts = entropy.summarize(directory, counts)
        if recording_state.goes_on:
            facts = msgspec.structs.replace(facts, sealed=False)
        if self._plan.mode == RECORD:
            run.profile = facts
        if facts.sealed:  # otherwise a running process may write more lines
            with suppress(OSError):  # first: what starts from now on writes none
                (directory / rundir.OVER).touch(mode=0o600)
            self._seal_metrics()
            run.console = rundir.seal_console(self._path) if self._plan.console else None

    def _seal_metrics(self) -> None:
        pending_lines.gather(self._path, self._path / rundir.METRICS)
        self._run.metrics = rundir.seal_file(self._path / rundir.METRICS)
        self._run.trails = trails.seal(self._path / rundir.TRAIL)
        self._run.samples = sample_ledgers.seal(self._path / rundir.SAMPLES)
        self._run.evaluation = rundir.seal_evaluation(self._path)

    def _write_proof(self, tracing: Tracing | None) -> None:
        if tracing is not None:
            self._run.proof = tracing.proof(
                self._path / rundir.ENTROPY, (program.identity for program in self._run.out_of_reach)
            )

    def _report_proof(self) -> None:
        """Report the proof, once it is known what the run drew from without a request."""
        if self._run.proof is None:
            return
        from reprokit.run.prove import in_words as proof_in_words

        ticks = [source.text for source in self._run.uncovered if source.source == "ticks"]
        self._run.proof = msgspec.structs.replace(self._run.proof, without_requests=ticks)
        say(f"proof: {proof_in_words(self._run.proof)}")

    def _finish_profiling(self, recording_state: RecordingState) -> None:
        if recording_state.profiled is not None:
            from reprokit.run.profile_run import remove_captured

            self._run.profiling = recording_state.profiled.facts
            recording_state.profiled.take_system_calls(self._path)
            if not recording_state.goes_on:
                remove_captured(self._path)

    def _finish_agent(self, environment_collector: EnvironmentCollector | None) -> None:
        facts = agent_lines.read(self._path)
        self._run.agent = states.LOADED if facts.loaded else self._absent_agent()
        unavailable = facts.captures_unavailable.items()
        self._run.captures_unavailable = [msgspec.structs.replace(each, processes=count) for each, count in unavailable]
        for warning in by_cause(facts.warnings):
            if not warning.said:
                self._show(f"the agent: {warning.text}")
        if self._plan.mode == RUN and self._plan.capture is not None and not facts.loaded:
            self._warn("nothing was watched: no Python process of the run began the agent")
        if self._plan.replay_of is not None and facts.seeds:
            kept_seeds = facts.seeds - facts.seeds_replaced
            say(f"seeds: {kept_seeds} as the training asked, {facts.seeds_replaced} given again as recorded")
        if self._run.fidelity is not None and any(facts.orders.values()):
            exact, moved, unused = (facts.orders[kind] for kind in agent_lines.TURNS)
            self._run.fidelity = msgspec.structs.replace(
                self._run.fidelity, orders=exact, orders_moved=moved, orders_unused=unused
            )
            say(f"orders: {self._run.fidelity.orders_in_words}")
        for what in sorted(facts.shared):
            text = f"{what}: memory that processes share; what depends on who comes first there may not repeat"
            self._run.uncovered.append(Uncovered(source="memory", text=text))
            if self._plan.mode == RECORD:
                say(text)
        if self._run.patches:
            self._attempt(lambda: self._finish_patches(facts))
        if environment_collector is None:
            return
        environment = environment_collector.complete(facts, self._interrupted)
        rundir.write_json(self._path / rundir.ENVIRONMENT, environment)
        self._run.environment = rundir.seal_file(self._path / rundir.ENVIRONMENT)
        if self._plan.replay_of is not None:
            from reprokit.run import data, replay_plan

            recorded_environment = RunDirectory(Path(self._plan.replay_of.path)).environment() or {}
            self._run.changed.extend(replay_plan.later_changes(recorded_environment, environment))
            for change in data.changes_between(recorded_environment.get("data"), environment.data):
                self._say_changed(change)
            self._report_compute_differences(RunDirectory(Path(self._plan.replay_of.path)))

    def _absent_agent(self) -> states.Loading:
        if self._plan.untouched:
            return states.not_loaded("the command was left untouched", "not-observed")
        if self._disk_is_full and self._recording_state is not None:
            return states.not_loaded("the disk was full, so that it may have begun")
        program_names = {os.path.basename(program) for program in entropy.programs(self._path / rundir.ENTROPY)}
        if unsupported := sorted(name for name in program_names if TOO_OLD.fullmatch(name)):
            self._warn(
                f"{unsupported[0]} is older than Python 3.7: no metrics, weights and seeds are recorded, only entropy"
            )
            return states.not_loaded(f"{unsupported[0]} is older than Python 3.7")
        return states.not_loaded("no Python process of the run began it")

    def _finish_patches(self, facts: agent_lines.AgentFacts) -> None:
        """Record the final state of each patch, as the processes of the run reported it."""
        from reprokit.run import run_patches

        initial_states, self._run.patches = self._run.patches, run_patches.at_end(self._run.patches, facts)
        for warning in run_patches.words_after(initial_states, self._run.patches):
            self._warn(warning)

    def _report_compute_differences(self, recording: RunDirectory) -> None:
        """Report which libraries computed with other settings than in the recording, in spite of the pins."""
        from reprokit.run import compute_pins

        for change in compute_pins.unmet(recording, RunDirectory(self._path)):
            self._say_changed(change)

    def _say_changed(self, change: str) -> None:
        if change not in self._run.changed:  # otherwise it was reported before the start
            self._run.changed.append(change)
            warn(f"changed: {change}")

    def _collect_outputs(self) -> None:
        plan = self._plan
        outputs_file = outputs.collect(
            self._path,
            plan.working_directory,
            self._interrupted,
            plan.keep_outputs,
            plan.moved,
            plan.command,
            (*plan.aside, *filter(None, [self._fallback])),
            [interval for companion in self._companions for interval in companion.intervals],
            is_shared=self._path.parent.name == rundir.HOSTS,
        )
        rundir.write_json(self._path / rundir.OUTPUTS, outputs_file)
        self._run.outputs = rundir.seal_file(self._path / rundir.OUTPUTS)
        notes = (*outputs_file.not_compared, outputs_file.empty_directories, outputs_file.not_restorable)
        for note in filter(None, notes):
            say(f"outputs: {note}")
        if any(file.private_key for file in outputs_file.files):
            self._warn(_private_key_warning(outputs_file, plan.replay_of))

    def _collect_modules(self) -> None:
        plan = self._plan
        is_supervised = self._run.supervisor is not None and self._run.supervisor.is_on
        module_findings = modules.collect(
            self._path,
            plan.working_directory,
            plan.record_crypto,
            self._interrupted,
            is_supervised=is_supervised,
            calendar=self._run.calendar,
            may_use=agent_lines.read(self._path).may_use,
        )
        self._run.uncovered.extend(module_findings.uncovered)
        for refusal in module_findings.refused:
            self._warn(refusal.text)
        for finding in module_findings.noted if plan.mode == RECORD else ():
            say(finding.text)
        if module_findings.interrupted:
            self._warn("not every module was looked through for RDRAND and RDSEED: interrupted")

    def _collect_snapshots(self) -> None:
        if self._plan.capture is None:
            return
        from reprokit.capture import files
        from reprokit.run import snapshots

        for warning in snapshots.remove_partials(self._path, self._fallback):
            self._warn(warning)
        self._run.snapshots = files.collect(self._path, self._fallback)


def _signals_sent(run: Path) -> list[SignalSent]:
    """Return the signals that processes of the run sent to end each other."""
    listed = sorted(_signals_listed(run / rundir.SIGNALS))[:MAX_SIGNALS]
    return [SignalSent(number=number, target=abs(target), group=target < 0) for target, number in listed]


def _killed(run: Path, command: ExitStatus) -> list[ProcessKilled]:
    """Return the processes that signals ended: the command, and what its processes waited for."""
    killed = _signals_listed(run / rundir.KILLED)
    if command.signal_number is not None and command.pid:
        killed.add((command.pid, command.signal_number))
    listed = sorted(pair for pair in killed if pair[0] > 0)[:MAX_SIGNALS]
    return [ProcessKilled(number=number, process=process) for process, number in listed]


def _signals_listed(path: Path) -> set[tuple[int, int]]:
    """Return pairs of a process and a signal from a list that the shim wrote."""
    lines = set(rundir.beginning(path, MAX_SIGNALS_READ).split(b"\n")[:-1])
    return {(int(match[2]), int(match[1])) for line in lines if (match := SIGNAL.fullmatch(line))}


def _private_key_warning(outputs_file: OutputsFile, replay_of: ReplayOf | None) -> str:
    """Return the warning that names private keys among the outputs, and whether a replay made one again."""
    keys = [file for file in outputs_file.files if file.private_key]
    names = ", ".join(file.path for file in keys[:MAX_NAMED]) + (", ..." if len(keys) > MAX_NAMED else "")
    text = f"private keys are among the outputs, of which only digests are kept: {names}"
    if replay_of is None:
        return f"{text}; a replay may make the same keys again"
    recorded = RunDirectory(Path(replay_of.path)).outputs()
    recorded_digests = {file.digest for file in recorded.files if file.private_key} if recorded is not None else set()
    remade = any(file.digest and file.digest in recorded_digests for file in keys)
    return f"{text}; {'a key of the recording was made again' if remade else 'none of them is one of the recording'}"


def in_words(fidelity: Fidelity) -> str:
    """Return replay fidelity in one line."""
    counts = ", ".join(f"{count} {kind}" for kind, count in fidelity.kinds.items())
    return f"{counts}: {fidelity.rearrangement}" if fidelity.rearrangement else counts
