"""The life of a run: prepared, started, waited for and gathered; recorded, observed and plain ones live the same.

The training's status is passed on.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reprokit import errors, native, rundir
from reprokit.launch import command as commands
from reprokit.launch import environment as environments
from reprokit.launch import host, variables
from reprokit.launch.command import Command
from reprokit.launch.environment import ChildEnvironment, PreloadPaths, placed
from reprokit.launch.messages import say, warn
from reprokit.launch.process import Child, ExitStatus, LateSignals, ResourceUsage, Termination
from reprokit.launch.rundirectory import NewRun, shown
from reprokit.launch.supervisor import LostProgramSocket, Supervisor
from reprokit.model.run import FAILED, RunFile
from reprokit.model.states import WITHOUT_SUPERVISOR, Uncovered, off
from reprokit.plan import REPLAY, RUN, Plan, past_tense
from reprokit.version import VERSION

if TYPE_CHECKING:
    from reprokit.launch.early_end import EarlyEnd
    from reprokit.launch.finish import Finish, RunCompanion
    from reprokit.launch.plain_run import UnshimmedRun
    from reprokit.launch.profile_run import ProfiledRun
    from reprokit.launch.prove import Tracing
    from reprokit.launch.rule_watch import RuleWatch
    from reprokit.launch.run_patches import PreparedPatches
    from reprokit.launch.snapshots import SnapshotHook
    from reprokit.launch.upload import Upload

RESERVED = 128 << 10  # bytes: run.json, environment.json and outputs.json of a usual run
Watch = Callable[[Child], None]

MAX_REASON = 4096  # bytes of the file in which the shim says why a strict replay stopped


class PreparedRun(msgspec.Struct, frozen=True):
    """Everything that is ready before the child starts."""

    plan: Plan
    command: Command
    environment: ChildEnvironment
    path: Path
    run: RunFile


class CompletedRun(msgspec.Struct, frozen=True):
    """A run that was made: where it is, and how its training ended."""

    path: Path
    ended: ExitStatus
    used: ResourceUsage = ResourceUsage()


def execute(plan: Plan, *watches: Watch) -> CompletedRun:
    """Execute the plan, on a supported platform, from its preparation to its finished run directory."""
    own = own_environment(plan)
    command = commands.resolve(plan.command, own.get("PATH"), plan.working_directory)
    instruments = _instruments(plan)
    with placed(native.shim_path()) as place:
        new = NewRun(plan.output, plan.overwrite, becomes_last=instruments.becomes_last)
        try:
            prepared = _prepare(plan, command, own, instruments, place, new)
        except OSError as error:
            new.discard()
            raise errors.CannotWriteRun(f"{new.place}: {error.strerror}; choose another place with -o") from None
        except BaseException:
            new.discard()
            raise
        return _execute(prepared, instruments, watches)


def _instruments(plan: Plan) -> ShimmedRun | UnshimmedRun:
    """Return what is put around the command: shim, supervisor and agent, or at most the agent."""
    if plan.mode == RUN:
        from reprokit.launch.plain_run import UnshimmedRun

        return UnshimmedRun(plan)
    native.load_shim()
    return ShimmedRun(plan)


def own_environment(plan: Plan) -> dict[str, str]:
    """Return the user's variables; in a replay the kept ones as they were."""
    if environments.RUN in os.environ and native.shim_path().name in os.environ.get("LD_PRELOAD", ""):
        raise errors.NestedRun("reprokit runs inside a run already; start it from a shell of its own")
    own = environments.without_own(environments.inherited())
    own = environments.without_rdrand(own) if plan.hide_rdrand else own
    return own if plan.variables is None else variables.given_again(own, plan.variables)


def _prepare(
    plan: Plan,
    command: Command,
    own: dict[str, str],
    instruments: ShimmedRun | UnshimmedRun,
    place: PreloadPaths,
    new: NewRun,
) -> PreparedRun:
    """Write what shim and agent need, and put the run directory in its place."""
    patched = patched_by(plan, command, own)
    environment = instruments.environment(own if patched is None else patched.variables, new, place)
    run = run_file(plan, own, environment)
    run.patches = [] if patched is None else patched.states
    instruments.prepare(run, new, place)
    write_agent_plan(plan, new, place, patched)
    rundir.write_json(new.path / rundir.RUN, run)
    _reserve(new.path / rundir.RESERVE)
    return PreparedRun(plan, command, environment, new.take_place(), run)


def write_agent_plan(plan: Plan, new: NewRun, place: PreloadPaths, patched: PreparedPatches | None) -> None:
    """plan.json, and the directories that the agent is told of."""
    if plan.capture is not None:
        _refuse_others_snapshots(plan.capture.fallback_of(new.place))
        (new.path / rundir.SNAPSHOTS).mkdir(mode=0o700)
    snapshots = new.place / rundir.SNAPSHOTS
    for_agent = plan.for_agent(place.shim, native.trail_path(), snapshots, [] if patched is None else patched.for_agent)
    rundir.write_json(new.path / rundir.AGENT_PLAN, for_agent)
    variables.write_key(new.path / rundir.VARIABLE_KEY, None if plan.replay_of is None else Path(plan.replay_of.path))


def _refuse_others_snapshots(fallback: Path | None) -> None:
    """Raise RunExists where another run of the same name has used the fallback: its snapshots would be this run's."""
    if fallback is not None and os.path.lexists(fallback):
        advice = "remove it, or choose another directory with --snapshot-fallback"
        raise errors.RunExists(f"{shown(fallback)} is there already, of another run of this name; {advice}")


def patched_by(plan: Plan, command: Command, own: dict[str, str]) -> PreparedPatches | None:
    """Return the patches that the plan asks for, if it asks for any."""
    if not plan.patches:
        return None
    from reprokit.launch import run_patches

    return run_patches.prepare(plan.patches, command, own, plan.working_directory)


def _on_processors(count: int | None) -> AbstractContextManager[None]:
    if count is None:
        return nullcontext()
    from reprokit.launch.compute_pins import on_processors

    return on_processors(count)


def _reserve(path: Path) -> None:
    """Keep room for the end of the run, which a training that fills the disk would else not leave."""
    with open(path, "xb") as file, suppress(OSError):  # a file system that cannot reserve
        os.posix_fallocate(file.fileno(), 0, RESERVED)


def run_file(plan: Plan, own: dict[str, str], environment: ChildEnvironment) -> RunFile:
    """run.json as it is at the start."""
    run = RunFile(
        run_id=os.urandom(16).hex(),
        kind=plan.mode,
        reprokit=VERSION,
        command=list(plan.command),
        working_directory=str(plan.working_directory),
        fresh="" if plan.fresh is None else str(plan.fresh),
        variables=variables.kept(own),
        policy=plan.policy,
        key=plan.key.hex(),
        keyed=plan.keyed,
        clock=plan.clock,
        include_crypto=plan.record_crypto,
        hide_rdrand=plan.hide_rdrand,
        trail=plan.trail,
        batch_digests=plan.batch_digests,
        started=rundir.utc_now(),
        launcher_pid=os.getpid(),
        launcher_started=host.started_at(),
        host=os.uname().nodename,
        environment_size=environment.size,
        replay_of=plan.replay_of,
        recipe=plan.recipe,
        capture=None if plan.capture is None else plan.capture.as_asked(),
        changed=list(plan.changed),
    )
    if environment.warning:
        run.warnings.append(environment.warning)
    return run


def _execute(prepared: PreparedRun, instruments: ShimmedRun | UnshimmedRun, watches: Sequence[Watch]) -> CompletedRun:
    """Start the child, wait for it, close the run; from here on no failure of reprokit's counts."""
    plan, command, run, path = prepared.plan, prepared.command, prepared.run, prepared.path
    _say_beginning(plan, run)
    instruments.arm(prepared)
    began = time.monotonic()
    try:
        child = instruments.start(prepared)
    except OSError as error:
        instruments.give_up(prepared)
        raise start_error(command.arguments[0], error) from None
    gathering = None
    if plan.mode != RUN or plan.observed:
        gathering = host.EnvironmentCollector(
            path, command.program, command.arguments, plan.working_directory, plan.data
        )
    run.address_randomization = child.address_randomization
    write_run(path, run)
    # Only now, as they would have delayed the training's start.
    import reprokit.launch.finish  # noqa: F401

    hook, rules, upload = hook_of(plan, path), rules_of(plan, path, run), upload_of(plan, path)
    beside = [one for one in (hook, rules) if one is not None]
    all_watches = (*instruments.watches(), *beside, upload, *watches, limit_of(plan, began))
    ended = child.wait([watch for watch in all_watches if watch is not None])
    interruption = LateSignals()
    ended = ended if rules is None else rules.ended(ended)
    finish = instruments.finish(prepared, ended, lambda: interruption.asked, beside)
    finish.close(began, gathering)
    instruments.leave(prepared)
    if upload is not None:
        upload.finish(lambda: interruption.asked)
    return CompletedRun(path, finish.ended, child.used)


def _say_beginning(plan: Plan, run: RunFile) -> None:
    if plan.mode == REPLAY:
        say(f"replaying: {shlex.join(plan.command)}")
        if plan.record_crypto:
            warn("the bytes of cryptographic libraries were recorded too: keys that are made now are the same again")
    said = [*(f"changed: {change}" for change in plan.changed), *run.warnings]
    if run.patches:
        from reprokit.launch.run_patches import words_before

        said += words_before(run.patches)
    for words in said:
        warn(words)


class ShimmedRun:
    """Records or replays: the shim and the agent are in the command, the supervisor beside it."""

    becomes_last = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tracing: Tracing | None = None  # --prove
        self._profiled: ProfiledRun | None = None  # reprokit profile
        self._supervisor: Supervisor | None = None
        self._unreached: LostProgramSocket | None = None
        self._early_end: EarlyEnd | None = None
        self._stopped = ""  # why a strict replay was

    def environment(self, variables: dict[str, str], new: NewRun, place: PreloadPaths) -> ChildEnvironment:
        """Return the user's variables with those that start shim and agent."""
        variables = {**variables, **self._plan.beside}
        return environments.build(variables, new.place, place.shim, place.bootstrap, self._plan.environment_size)

    def prepare(self, run: RunFile, new: NewRun, place: PreloadPaths) -> None:
        """Write the shim's plan, and what tracing, profiling and replays need."""
        plan = self._plan
        native.write_shim_plan(new.path / rundir.SHIM_PLAN, plan, place.shim, place.bootstrap)
        (new.path / rundir.ENTROPY).mkdir(mode=0o700)
        if plan.console:
            (new.path / rundir.CONSOLE).mkdir(mode=0o700)
        # What few runs need is imported by them: each millisecond before the start delays every training.
        if plan.prove:
            from reprokit.launch import prove

            self._tracing = prove.find(new.place, place.shim)
        if plan.profiling is not None:
            from reprokit.launch.profile_run import ProfiledRun

            (new.path / rundir.PROFILE).mkdir(mode=0o700)
            self._profiled = ProfiledRun(plan.profiling, new.place)
            run.profiling = self._profiled.facts
        if plan.question is not None and plan.mode == REPLAY:
            from reprokit.launch import early_end

            (new.path / rundir.ANSWERS).mkdir(mode=0o700)
            self._early_end = early_end.once_answered(new.place)
        if plan.replay_of is not None:
            from reprokit.launch import seeds

            problem = seeds.hand_on(Path(plan.replay_of.path), new.path, force=plan.force)
            run.warnings.extend([problem] if problem else [])

    def arm(self, prepared: PreparedRun) -> None:
        """Make the supervisor; one that has to take rights away does not if the command needs some."""
        self._unreached = LostProgramSocket(prepared.path)
        if self._plan.supervisor:
            rights = not prepared.command.refusal.gains_rights
            is_traced = self._tracing is not None or (self._profiled is not None and self._profiled.traces)
            self._supervisor = Supervisor(prepared.path, may_forbid_rights=rights, sees_exec=not is_traced)
        if self._profiled is not None:
            self._early_end = self._profiled.begin()

    def start(self, prepared: PreparedRun) -> Child:
        """Start the command, under strace where it is to be watched."""
        command, variables = prepared.command, prepared.environment.variables
        for tracer in (self._tracing, self._profiled):
            if tracer is not None:
                command, variables = tracer.wrap(command, variables)
        with _on_processors(self._plan.processors):
            child = Child(command, self._plan.working_directory, variables, self._supervisor)
        _say_supervised(prepared.run, self._supervisor, prepared.command.refusal)
        return child

    def give_up(self, prepared: PreparedRun) -> None:
        """Leave a run that failed."""
        prepared.run.status, prepared.run.ended = FAILED, rundir.utc_now()
        write_run(prepared.path, prepared.run)

    @property
    def _is_strict(self) -> bool:
        return self._plan.mode == REPLAY and self._plan.policy == "strict"

    def watches(self) -> Iterable[Watch | None]:
        """Return what ends a strict replay that lacks entropy, or a run of which enough was seen."""
        return [Termination(self._must_stop) if self._is_strict else self._early_end]

    def _must_stop(self) -> bool:
        assert self._unreached is not None
        return _is_written(self._unreached.run_directory / rundir.STOPPED) or bool(self._unreached.heard())

    def finish(
        self, prepared: PreparedRun, ended: ExitStatus, interrupted: Callable[[], bool], beside: Sequence[RunCompanion]
    ) -> Finish:
        """End the supervisor and what bounded the command."""
        from reprokit.launch.finish import Finish, RecordingState

        plan, path, run = prepared.plan, prepared.path, prepared.run
        if self._profiled is not None:
            ended = self._profiled.end(ended)
        elif self._early_end is not None:
            ended = self._early_end.finish(ended)
        goes_on = _goes_on(path, self._supervisor)
        run.warnings.extend(self._supervisor.stop() if self._supervisor is not None else ())
        assert self._unreached is not None
        run.out_of_reach = self._unreached.close()
        if self._is_strict:
            stopped = path / rundir.STOPPED
            self._stopped = _reason(stopped) if stopped.exists() else run.out_of_reach_in_words
        if self._stopped:
            run.warnings.append(f"the strict replay was stopped: {self._stopped}")
        recorded = RecordingState(prepared.command.refusal.why, goes_on, self._tracing, self._profiled)
        return Finish(plan, path, run, ended, interrupted, beside, recorded)

    def leave(self, prepared: PreparedRun) -> None:
        """Say where the run is, and fail where a strict replay was stopped."""
        say(f"run: {shown(prepared.path)}")
        say_captured(prepared.plan, prepared.path, prepared.run)
        if self._stopped:
            raise errors.ReplayStopped(self._stopped)


def hook_of(plan: Plan, path: Path) -> SnapshotHook | None:
    """Return what runs the user's command for each snapshot, where there is one."""
    if plan.capture is None or not plan.capture.hook:
        return None
    from reprokit.launch.snapshots import SnapshotHook

    return SnapshotHook(plan.capture.hook, path, plan.capture.fallback_of(path))


def upload_of(plan: Plan, path: Path) -> Upload | None:
    """Return what writes the run to an object store, where that is asked for."""
    if not plan.push:
        return None
    from reprokit.launch.upload import Upload

    return Upload(path, plan.push)


def rules_of(plan: Plan, path: Path, run: RunFile) -> RuleWatch | None:
    """Return what judges the training beside it, where it was asked for."""
    if plan.rules is None:
        return None
    from reprokit.launch.rule_watch import RuleWatch

    return RuleWatch(plan.rules, path, run.run_id)


def limit_of(plan: Plan, began: float) -> Termination | None:
    """Return what ends a command that takes longer than it may."""
    if plan.timeout is None:
        return None
    deadline = began + plan.timeout
    return Termination(lambda: time.monotonic() > deadline)


def say_captured(plan: Plan, path: Path, run: RunFile) -> None:
    """The last lines of a run that captured something."""
    if run.snapshots:
        from reprokit.launch import snapshots

        snapshots.say_found(path, plan.command, run.snapshots)


def _goes_on(path: Path, supervisor: Supervisor | None) -> bool:
    """Return whether some program of the run does, after its command."""
    if supervisor is not None and supervisor.is_on:
        return supervisor.has_programs()
    from reprokit.launch.stragglers import has_stragglers

    return has_stragglers(path)


def _say_supervised(run: RunFile, supervisor: Supervisor | None, refusal: commands.ShimRefusal) -> None:
    """What is covered, once the command is there; a line only where it matters for the command itself."""
    state = WITHOUT_SUPERVISOR if supervisor is None else supervisor.state or off("it was not started")
    run.supervisor = state
    if refusal.why and (refusal.is_foreign or not state.is_on):
        text = f"the command's own requests: {refusal.why}, supervisor {state.words}"
        run.uncovered.append(Uncovered(source="command", text=text))
        what = f"its entropy is not {past_tense(run.kind)}: supervisor {state.words}"
        warn(f"the shim cannot load: {refusal.why}; {what}")


def start_error(name: str, error: OSError) -> errors.LaunchError:
    """Return what is said of a command that the kernel does not start."""
    what = f"{name}: {error.strerror}; it cannot be run"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return errors.CommandNotFound(what)
    return errors.CommandNotExecutable(what)


def write_run(path: Path, run: RunFile) -> None:
    try:
        rundir.write_json(path / rundir.RUN, run)
    except errors.CannotWriteRun as error:
        run.warnings.append(str(error))
        warn(str(error))


def _is_written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _reason(stopped: Path) -> str:
    try:
        with open(stopped, "rb") as file:
            reason = file.read(MAX_REASON).decode("utf-8", "replace").strip()
    except OSError:
        reason = ""
    return reason or "the training asked for entropy that the recording does not hold; replay with --policy derive"
