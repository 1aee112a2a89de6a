"""Closes a run: what came out of it is gathered and run.json is written for the last time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from reprokit import entropy, pending_lines, rundir, sample_ledgers, trails
from reprokit.errors import ReprokitError, reason
from reprokit.launch import agent_lines, modules, outputs
from reprokit.launch.host import EnvironmentCollector
from reprokit.launch.messages import say, warn
from reprokit.launch.process import Child, ExitStatus
from reprokit.model import states
from reprokit.model.outputs import OutputsFile
from reprokit.model.run import FINISHED, Fidelity, ReplayOf, RunFile, SignalSent
from reprokit.model.states import Uncovered
from reprokit.plan import RECORD, RUN, Plan, past_tense
from reprokit.rundir import RunDirectory

if TYPE_CHECKING:
    from reprokit.launch.plain_run import WatchedFiles
    from reprokit.launch.profile_run import ProfiledRun
    from reprokit.launch.prove import Tracing

T = TypeVar("T")
TOO_OLD = re.compile(r"python(2(\.\d+)?|3\.[0-6])m?")  # for the agent
MAX_NAMED = 10  # private keys in a sentence
MAX_SIGNALS_READ = 1 << 20  # bytes of the list of signals
MAX_SIGNALS = 10_000
SIGNAL = re.compile(rb"([1-9]|[1-5]\d|6[0-4]) (-?[1-9]\d{0,9})")
LITTLE = 64 << 10  # bytes free on a disk that is as good as full


class RecordingState(msgspec.Struct, frozen=True):
    """What stood beside a command whose entropy was recorded or replayed."""

    not_loaded: str = ""  # why the shim is not in the command
    goes_on: bool = False  # a program of the run outlives the command, and may yet ask for entropy
    tracing: Tracing | None = None
    profiled: ProfiledRun | None = None


class RunCompanion(Protocol):
    """What runs beside the training, and is waited for a while at its end."""

    def __call__(self, child: Child) -> None:
        """Look at what the training has come to."""

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Come to an end; returns what went wrong."""


class Finish:
    """The end of one run. Each step may fail by itself: the training's status is passed on all the same."""

    def __init__(
        self,
        plan: Plan,
        path: Path,
        run: RunFile,
        ended: ExitStatus,
        interrupted: Callable[[], bool],
        beside: Sequence[RunCompanion] = (),
        recorded: RecordingState | None = None,
        written: WatchedFiles | None = None,
    ):
        self._plan, self._path, self._run, self._interrupted = plan, path, run, interrupted
        self.ended, self._beside = ended, beside
        self._recorded, self._written = recorded, written
        self._fallback = None if plan.capture is None else plan.capture.fallback_of(path)
        self._full = False  # the disk, at the end

    def close(self, began: float, gathering: EnvironmentCollector | None) -> None:
        """Fill in run.json and write it, with what else there is to be kept of the run."""
        run = self._run
        self._attempt(self._use_reserve)
        run.exit_code, run.signal = self.ended.exit_code, self.ended.signal_name
        run.duration, run.ended = time.monotonic() - began, rundir.utc_now()
        recorded, written = self._recorded, self._written
        if recorded is not None:
            self._attempt(lambda: self._take_proof(recorded.tracing))
            self._attempt(lambda: self._take_profiling(recorded))
            self._attempt(lambda: self._take_entropy(recorded))
        elif self._plan.observed:
            self._attempt(self._seal_metrics)
        self._attempt(lambda: self._take_agent(gathering))
        if written is not None:
            self._attempt(lambda: self._take_written(written))
        if recorded is not None or written is not None:
            self._attempt(self._take_outputs)
        if recorded is not None:
            run.signals = self._attempt(lambda: _signals_sent(self._path)) or []
            self._attempt(self._take_modules)
        for one in self._beside:
            for words in self._attempt(partial(one.finish, self._interrupted)) or ():
                self._warn(words)
        self._attempt(self._take_snapshots)
        run.status = FINISHED
        self._attempt(lambda: rundir.write_json(self._path / rundir.RUN, run))

    def _use_reserve(self) -> None:
        """Make the room that was kept free; a disk without any other has lost lines of the agent's."""
        disk = os.statvfs(self._path)
        self._full = disk.f_bavail * disk.f_frsize < LITTLE
        if self._full:
            self._warn("the disk is full: metrics that the training wrote last may be missing")
        (self._path / rundir.RESERVE).unlink(missing_ok=True)

    def _attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except (ReprokitError, MemoryError) as error:
            self._warn(reason(error))
        except Exception as error:  # whatever it is, the training has ended well
            self._warn(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {reason(error)}")
        return None

    def _warn(self, text: str) -> None:
        self._run.warnings.append(text)
        if self._plan.capture is None or self._plan.capture.redo is None:  # whose asker reads the result
            warn(text)

    def _take_entropy(self, recorded: RecordingState) -> None:
        run, directory, not_loaded = self._run, self._path / rundir.ENTROPY, recorded.not_loaded
        counts = entropy.count(directory)
        if not not_loaded and not entropy.root_loaded(directory, counts):
            not_loaded = "the command's own process did not load it"
            self._warn(f"the shim was not loaded: {not_loaded}; its entropy was not {past_tense(self._plan.mode)}")
        run.shim = states.not_loaded(not_loaded) if not_loaded else states.LOADED
        if run.out_of_reach:
            run.uncovered.append(Uncovered(source="out-of-reach", text=run.out_of_reach_in_words))
            self._warn(run.out_of_reach_in_words)
        for words in (*entropy.gave_up(directory, counts), *entropy.withheld_runtimes(directory, counts)):
            self._warn(words)
        if fresh := entropy.fresh_requests(directory):
            self._warn(
                f"the supervisor was stopped, short of descriptors or not let in: {fresh} requests got fresh bytes"
            )
        if self._plan.replay_of is not None:
            recording = RunDirectory(Path(self._plan.replay_of.path))
            run.fidelity = entropy.fidelity(directory, recording.path / rundir.ENTROPY, counts, recording.run.profile)
            say(f"entropy requests: {in_words(run.fidelity)}")
            if self._plan.clock:
                say(f"reads of the clock: {run.fidelity.clock} as recorded, {run.fidelity.clock_past} beyond")
        facts = entropy.summarize(directory, counts)
        if recorded.goes_on:
            facts = msgspec.structs.replace(facts, sealed=False)
        if self._plan.mode == RECORD:
            run.profile = facts
        if facts.sealed:  # otherwise a process that is still there may write more lines
            self._seal_metrics()
            run.console = rundir.seal_console(self._path) if self._plan.console else None

    def _seal_metrics(self) -> None:
        pending_lines.gather(self._path, self._path / rundir.METRICS)
        self._run.metrics = rundir.seal_file(self._path / rundir.METRICS)
        self._run.trails = trails.seal(self._path / rundir.TRAIL)
        self._run.samples = sample_ledgers.seal(self._path / rundir.SAMPLES)
        self._run.evaluation = rundir.seal_evaluation(self._path)

    def _take_proof(self, tracing: Tracing | None) -> None:
        if tracing is not None:
            from reprokit.launch.prove import in_words as proof_in_words

            self._run.proof = tracing.proof(
                self._path / rundir.ENTROPY, (program.identity for program in self._run.out_of_reach)
            )
            say(f"proof: {proof_in_words(self._run.proof)}")

    def _take_profiling(self, recorded: RecordingState) -> None:
        if recorded.profiled is not None:
            from reprokit.launch.profile_run import remove_captured

            self._run.profiling = recorded.profiled.facts
            recorded.profiled.take_system_calls(self._path)
            if not recorded.goes_on:
                remove_captured(self._path)

    def _take_agent(self, gathering: EnvironmentCollector | None) -> None:
        facts = agent_lines.read(self._path)
        self._run.agent = states.LOADED if facts.loaded else self._absent_agent()
        self._run.captures_unavailable = facts.captures_unavailable
        for words in facts.warnings:
            self._warn(words)
        if self._plan.mode == RUN and self._plan.capture is not None and not facts.loaded:
            self._warn("nothing was watched: no Python process of the run began the agent")
        if self._plan.replay_of is not None and facts.seeds:
            same = facts.seeds - facts.seeds_replaced
            say(f"seeds: {same} as the training asked, {facts.seeds_replaced} given again as recorded")
        if self._run.fidelity is not None and any(facts.orders.values()):
            exact, moved, unused = (facts.orders[kind] for kind in agent_lines.TURNS)
            self._run.fidelity = msgspec.structs.replace(
                self._run.fidelity, orders=exact, orders_moved=moved, orders_unused=unused
            )
            say(f"orders: {self._run.fidelity.orders_in_words}")
        if self._run.patches:
            self._attempt(lambda: self._take_patches(facts))
        if gathering is None:
            return
        environment = gathering.complete(facts, self._interrupted)
        rundir.write_json(self._path / rundir.ENVIRONMENT, environment)
        self._run.environment = rundir.seal_file(self._path / rundir.ENVIRONMENT)
        if self._plan.replay_of is not None:
            from reprokit.launch import data, replay_plan

            before = RunDirectory(Path(self._plan.replay_of.path)).environment() or {}
            self._run.changed.extend(replay_plan.later_changes(before, environment))
            for change in data.changes_between(before.get("data"), environment.data):
                self._say_changed(change)
            self._take_unmet(RunDirectory(Path(self._plan.replay_of.path)))

    def _absent_agent(self) -> states.Loading:
        if self._plan.untouched:
            return states.not_loaded("the command was left untouched", "not-observed")
        if self._full and self._recorded is not None:
            return states.not_loaded("the disk was full, so that it may have begun")
        named = {os.path.basename(program) for program in entropy.programs(self._path / rundir.ENTROPY)}
        if old := sorted(name for name in named if TOO_OLD.fullmatch(name)):
            self._warn(f"{old[0]} is older than Python 3.7: no metrics, weights and seeds are recorded, only entropy")
            return states.not_loaded(f"{old[0]} is older than Python 3.7")
        return states.not_loaded("no Python process of the run began it")

    def _take_patches(self, facts: agent_lines.AgentFacts) -> None:
        """What became of each, now that the processes of the run have told."""
        from reprokit.launch import run_patches

        before, self._run.patches = self._run.patches, run_patches.at_end(self._run.patches, facts)
        for words in run_patches.words_after(before, self._run.patches):
            self._warn(words)

    def _take_unmet(self, recording: RunDirectory) -> None:
        """Say what computed otherwise than it did, although the replay did what it could."""
        from reprokit.launch import compute_pins

        for change in compute_pins.unmet(recording, RunDirectory(self._path)):
            self._say_changed(change)

    def _say_changed(self, change: str) -> None:
        if change not in self._run.changed:  # then it was said before the start
            self._run.changed.append(change)
            warn(f"changed: {change}")

    def _take_written(self, written: WatchedFiles) -> None:
        written.write(self._path)
        if not written.is_complete:
            self._warn("too many files lie below the command's directory: which it wrote was not looked for")

    def _take_outputs(self) -> None:
        plan = self._plan
        found = outputs.collect(
            self._path, plan.working_directory, self._interrupted, plan.keep_outputs, plan.moved, self._fallback
        )
        rundir.write_json(self._path / rundir.OUTPUTS, found)
        self._run.outputs = rundir.seal_file(self._path / rundir.OUTPUTS)
        for words in found.not_compared:
            say(f"outputs: {words}")
        if any(file.private_key for file in found.files):
            self._warn(_of_private_keys(found, plan.replay_of))

    def _take_modules(self) -> None:
        plan = self._plan
        found = modules.collect(self._path, plan.working_directory, plan.record_crypto, self._interrupted)
        self._run.uncovered.extend(found.uncovered)
        for refused in found.refused:
            self._warn(refused.text)
        for reader in found.noted if plan.mode == RECORD else ():
            say(reader.text)
        if found.interrupted:
            self._warn("not every module was looked through for RDRAND and RDSEED: interrupted")

    def _take_snapshots(self) -> None:
        if self._plan.capture is None:
            return
        from reprokit.capture import files
        from reprokit.launch import snapshots

        for words in snapshots.remove_partials(self._path, self._fallback):
            self._warn(words)
        self._run.snapshots = files.collect(self._path, self._fallback)


def _signals_sent(run: Path) -> list[SignalSent]:
    """Return the signals by which processes of the run ended each other: each once, in the order of the targets."""
    lines = set(rundir.beginning(run / rundir.SIGNALS, MAX_SIGNALS_READ).split(b"\n")[:-1])
    found = {(int(match[2]), int(match[1])) for line in lines if (match := SIGNAL.fullmatch(line))}
    first = sorted(found)[:MAX_SIGNALS]
    return [SignalSent(number=number, target=abs(target), group=target < 0) for target, number in first]


def _of_private_keys(found: OutputsFile, replay_of: ReplayOf | None) -> str:
    """Return which outputs are private keys, and whether a replay made them again."""
    keys = [file for file in found.files if file.private_key]
    names = ", ".join(file.path for file in keys[:MAX_NAMED]) + (", ..." if len(keys) > MAX_NAMED else "")
    said = f"private keys are among the outputs, of which only digests are kept: {names}"
    if replay_of is None:
        return f"{said}; a replay may make the same keys again"
    recorded = RunDirectory(Path(replay_of.path)).outputs()
    before = {file.digest for file in recorded.files if file.private_key} if recorded is not None else set()
    again = any(file.digest and file.digest in before for file in keys)
    return f"{said}; {'a key of the recording was made again' if again else 'none of them is one of the recording'}"


def in_words(fidelity: Fidelity) -> str:
    """Replay fidelity in one line."""
    words = ", ".join(f"{count} {kind}" for kind, count in fidelity.kinds.items())
    return f"{words}: {fidelity.rearrangement}" if fidelity.rearrangement else words
