"""Executes a run: prepares its directory, starts the command, waits for it and collects the results.

Recorded, observed and plain runs pass through the same steps. The training's exit status is passed on.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reprokit.core import errors, native
from reprokit.core.version import VERSION
from reprokit.model.plan import RECORD, REPLAY, RUN, Plan, ReplayStart, past_tense
from reprokit.model.run import FAILED, RunFile, StartFiles
from reprokit.model.states import WITHOUT_SUPERVISOR, Uncovered, off
from reprokit.run import command as commands
from reprokit.run import environment as environments
from reprokit.run import host, variables
from reprokit.run.command import Command
from reprokit.run.environment import ChildEnvironment, PreloadPaths, preload_paths
from reprokit.run.messages import say, warn
from reprokit.run.process import Child, ExitStatus, LateSignals, ResourceUsage, Termination
from reprokit.run.rundirectory import NewRun, shown
from reprokit.run.supervisor import LostProgramSocket, Supervisor
from reprokit.run_files import rundir

if TYPE_CHECKING:
    from reprokit.run.early_end import EarlyEnd
    from reprokit.run.finish import Finish, RunCompanion
    from reprokit.run.plain_run import UnshimmedRun
    from reprokit.run.profile_run import ProfiledRun
    from reprokit.run.prove import Tracing
    from reprokit.run.rule_watch import RuleWatch
    from reprokit.run.run_patches import PreparedPatches
    from reprokit.run.snapshots import SnapshotHook
    from reprokit.run.upload import Upload

RESERVED = 128 << 10  # bytes: the size of run.json, environment.json and outputs.json of a usual run
Watch = Callable[[Child], None]
CLOCK_REALTIME_COARSE = 5  # of Linux; file systems take their times from it
MAX_TICK = 10  # milliseconds

MAX_REASON = 4096  # bytes read of the file in which the shim reports why a strict replay stopped


class PreparedRun(msgspec.Struct, frozen=True):
    """A run whose directory, command and environment are ready before the child starts."""

    plan: Plan
    command: Command
    environment: ChildEnvironment
    path: Path
    run: RunFile


class CompletedRun(msgspec.Struct, frozen=True):
    """A run that was executed: its directory, and how its training ended."""

    path: Path
    ended: ExitStatus
    usage: ResourceUsage = ResourceUsage()


def execute(plan: Plan, *watches: Watch) -> CompletedRun:
    """Execute the plan on a supported platform, from its preparation to the finished run directory."""
    user_variables = own_environment(plan)
    command = commands.resolve(plan.command, user_variables.get("PATH"), plan.working_directory)
    instruments = _instruments(plan)
    with preload_paths() as paths:
        new_run = NewRun(plan.output, plan.overwrite, becomes_last=instruments.becomes_last)
        with ExitStack() as stack:
            try:
                start = stack.enter_context(_started_from(plan, new_run.place))
                prepared = _prepare(plan, command, user_variables, instruments, paths, new_run, start)
            except OSError as error:
                new_run.discard()
                raise errors.CannotWriteRun(
                    f"{new_run.place}: {error.strerror}; choose another place with -o"
                ) from None
            except BaseException:
                new_run.discard()
                raise
            return _execute(prepared, instruments, watches)


def _started_from(plan: Plan, place: Path) -> AbstractContextManager[StartFiles | None]:
    """Return a context in which the files are there from which the run is to start."""
    if plan.mode != REPLAY or plan.start is ReplayStart.HERE:
        return nullcontext(plan.started_from or StartFiles(here=True) if plan.mode == REPLAY else None)
    from reprokit.run import starting_files

    return starting_files.for_launcher(plan, place)


def _instruments(plan: Plan) -> ShimmedRun | UnshimmedRun:
    """Return what runs the command: with shim, supervisor and agent, or with the agent at most."""
    if plan.mode == RUN:
        from reprokit.run.plain_run import UnshimmedRun

        return UnshimmedRun(plan)
    native.require_shim()
    return ShimmedRun(plan)


def own_environment(plan: Plan) -> dict[str, str]:
    """Return the user's environment variables; in a replay, those that the recording kept have their old values."""
    if environments.RUN in os.environ and native.preload_path().name in os.environ.get("LD_PRELOAD", ""):
        raise errors.NestedRun("reprokit runs inside a run already; start it from a shell of its own")
    user_variables = environments.without_own(environments.inherited())
    user_variables = environments.without_rdrand(user_variables) if plan.hide_rdrand else user_variables
    return user_variables if plan.variables is None else variables.given_again(user_variables, plan.variables)


def _prepare(
    plan: Plan,
    command: Command,
    user_variables: dict[str, str],
    instruments: ShimmedRun | UnshimmedRun,
    paths: PreloadPaths,
    new_run: NewRun,
    start: StartFiles | None,
) -> PreparedRun:
    """Write what shim and agent need into the new run directory, and move it to its final path."""
    patches = patched_by(plan, command, user_variables)
    environment = instruments.environment(user_variables if patches is None else patches.variables, new_run, paths)
    run = run_file(plan, user_variables, environment)
    run.patches = [] if patches is None else patches.states
    run.start = start
    instruments.prepare(run, new_run, paths)
    write_agent_plan(plan, new_run, paths, patches)
    rundir.write_json(new_run.path / rundir.RUN, run)
    _reserve(new_run.path / rundir.RESERVE)
    return PreparedRun(plan, command, environment, new_run.take_place(), run)


def write_agent_plan(plan: Plan, new_run: NewRun, paths: PreloadPaths, patches: PreparedPatches | None) -> None:
    """Write plan.json, and create the directories that it names to the agent."""
    if plan.capture is not None:
        _refuse_others_snapshots(plan.capture.fallback_of(new_run.place))
        (new_run.path / rundir.SNAPSHOTS).mkdir(mode=0o700)
    snapshots = new_run.place / rundir.SNAPSHOTS
    for_agent = plan.for_agent(paths.shim, native.trail_path(), snapshots, [] if patches is None else patches.for_agent)
    rundir.write_json(new_run.path / rundir.AGENT_PLAN, for_agent)
    variables.write_key(
        new_run.path / rundir.VARIABLE_KEY, None if plan.replay_of is None else Path(plan.replay_of.path)
    )


def _refuse_others_snapshots(fallback: Path | None) -> None:
    """Raise RunExists if another run of the same name used the fallback directory: its snapshots would be mixed in."""
    if fallback is not None and os.path.lexists(fallback):
        advice = "remove it, or choose another directory with --snapshot-fallback"
        raise errors.RunExists(f"{shown(fallback)} is there already, of another run of this name; {advice}")


def patched_by(plan: Plan, command: Command, user_variables: dict[str, str]) -> PreparedPatches | None:
    """Return the prepared patches of the plan; None if it has none."""
    if not plan.patches:
        return None
    from reprokit.run import run_patches

    return run_patches.prepare(plan.patches, command, user_variables, plan.working_directory)


def _on_processors(count: int | None) -> AbstractContextManager[None]:
    if count is None:
        return nullcontext()
    from reprokit.run.compute_pins import on_processors

    return on_processors(count)


def _reserve(path: Path) -> None:
    """Reserve disk space for the end of the run, in case the training fills the disk."""
    with open(path, "xb") as file, suppress(OSError):  # a file system that cannot reserve
        os.posix_fallocate(file.fileno(), 0, RESERVED)


def run_file(plan: Plan, user_variables: dict[str, str], environment: ChildEnvironment) -> RunFile:
    """Return the content of run.json at the start of the run."""
    run = RunFile(
        run_id=os.urandom(16).hex(),
        kind=plan.mode,
        reprokit=VERSION,
        command=list(plan.command),
        working_directory=str(plan.working_directory),
        fresh="" if plan.fresh is None else str(plan.fresh),
        variables=variables.kept(user_variables),
        policy=plan.policy,
        key=plan.key.hex(),
        keyed=plan.keyed,
        calendar=plan.calendar or plan.clock,
        clock=plan.clock,
        include_crypto=plan.record_crypto,
        hide_rdrand=plan.hide_rdrand,
        trail=plan.trail,
        switched_off=plan.switched_off,
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
    """Start the child, wait for it and close the run; once the child runs, no failure of reprokit ends the run."""
    plan, command, run, path = prepared.plan, prepared.command, prepared.run, prepared.path
    _say_beginning(plan, run)
    instruments.arm(prepared)
    _await_tick(path / rundir.AGENT_PLAN)
    start = time.monotonic()
    try:
        child = instruments.start(prepared)
    except OSError as error:
        instruments.give_up(prepared)
        raise start_error(command, plan.working_directory, error) from None
    environment_collector = None
    if plan.mode != RUN or plan.observed:
        environment_collector = host.EnvironmentCollector(
            path, command.program, command.arguments, plan.working_directory, plan.data
        )
    run.address_randomization = child.address_randomization
    write_run(path, run)
    # Imported after the start, as it would have delayed the training.
    import reprokit.run.finish  # noqa: F401

    snapshot_hook, rule_watch, upload = (
        snapshot_hook_for(plan, path),
        rule_watch_for(plan, path, run),
        upload_for(plan, path),
    )
    companions = [companion for companion in (snapshot_hook, rule_watch) if companion is not None]
    all_watches = (*instruments.watches(), *companions, upload, *watches, time_limit_for(plan, start))
    exit_status = child.wait([watch for watch in all_watches if watch is not None])
    late_signals = LateSignals()
    exit_status = exit_status if rule_watch is None else rule_watch.ended(exit_status)
    finish = instruments.finish(prepared, exit_status, lambda: late_signals.interrupted, companions)
    finish.close(start, environment_collector)
    instruments.leave(prepared)
    if upload is not None:
        upload.finish(lambda: late_signals.interrupted)
    return CompletedRun(path, finish.ended, child.used)


def _await_tick(plan: Path) -> None:
    """Wait until file systems give later times than that of the agent's plan: what changes then is of the run."""
    written = plan.stat().st_ctime_ns
    for _ in range(MAX_TICK):
        if time.clock_gettime_ns(CLOCK_REALTIME_COARSE) > written:
            break
        time.sleep(0.001)


def _say_beginning(plan: Plan, run: RunFile) -> None:
    if plan.mode == REPLAY:
        say(f"replaying: {shlex.join(plan.command)}")
        if plan.record_crypto:
            warn("the bytes of cryptographic libraries were recorded too: keys that are made now are the same again")
    warnings = [*(f"changed: {change}" for change in plan.changed), *run.warnings]
    if run.patches:
        from reprokit.run.run_patches import words_before

        warnings += words_before(run.patches)
    for warning in warnings:
        warn(warning)


class ShimmedRun:
    """Records or replays the command: loads shim and agent into it, and runs the supervisor beside it."""

    becomes_last = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tracing: Tracing | None = None  # --prove
        self._profiled: ProfiledRun | None = None  # reprokit profile
        self._supervisor: Supervisor | None = None
        self._unreached: LostProgramSocket | None = None
        self._early_end: EarlyEnd | None = None
        self._stopped = ""  # why a strict replay was stopped

    def environment(self, variables: dict[str, str], new_run: NewRun, paths: PreloadPaths) -> ChildEnvironment:
        """Return the user's variables with those that load shim and agent."""
        variables = {**variables, **self._plan.own_variables}
        profiling = self._plan.profiling
        if self._plan.prove or (profiling is not None and profiling.system_calls.is_on):
            variables = environments.without_leak_search(variables)
        return environments.build(variables, new_run.place, paths.preload, paths.bootstrap, self._plan.environment_size)

    def prepare(self, run: RunFile, new_run: NewRun, paths: PreloadPaths) -> None:
        """Write the shim's plan, and what tracing, profiling and replays need."""
        plan = self._plan
        native.write_shim_plan(new_run.path / rundir.SHIM_PLAN, plan, paths.preload, paths.bootstrap)
        (new_run.path / rundir.ENTROPY).mkdir(mode=0o700)
        if plan.mode == RECORD:
            native.prepare_found(new_run.path / rundir.FOUND, plan.keep_found)
        if plan.console:
            (new_run.path / rundir.CONSOLE).mkdir(mode=0o700)
        # Imported only by the runs that need it: each millisecond before the start delays every training.
        if plan.prove:
            from reprokit.run import prove

            self._tracing = prove.find(new_run.place, paths.shim)
        if plan.profiling is not None:
            from reprokit.run.profile_run import ProfiledRun

            (new_run.path / rundir.PROFILE).mkdir(mode=0o700)
            self._profiled = ProfiledRun(plan.profiling, new_run.place)
            run.profiling = self._profiled.facts
        if plan.question is not None and (plan.mode == REPLAY or plan.question.state is not None):
            from reprokit.run import early_end

            (new_run.path / rundir.ANSWERS).mkdir(mode=0o700)
            self._early_end = early_end.once_answered(new_run.place)
        if plan.replay_of is not None:
            from reprokit.run import seeds

            problem = seeds.hand_on(Path(plan.replay_of.path), new_run.path, force=plan.force)
            run.warnings.extend([problem] if problem else [])

    def arm(self, prepared: PreparedRun) -> None:
        """Create the supervisor; it must not take rights away from a command that needs them."""
        self._unreached = LostProgramSocket(prepared.path)
        if self._plan.supervisor:
            may_forbid_rights = not prepared.command.refusal.gains_rights
            is_traced = self._tracing is not None or (self._profiled is not None and self._profiled.traces)
            self._supervisor = Supervisor(prepared.path, may_forbid_rights=may_forbid_rights, sees_exec=not is_traced)
        if self._profiled is not None:
            self._early_end = self._profiled.begin()

    def start(self, prepared: PreparedRun) -> Child:
        """Start the command, under strace if it is to be traced."""
        command, variables = prepared.command, prepared.environment.variables
        for tracer in (self._tracing, self._profiled):
            if tracer is not None:
                command, variables = tracer.wrap(command, variables)
        with _on_processors(self._plan.processors):
            child = Child(command, self._plan.working_directory, variables, self._supervisor)
        _say_supervised(prepared.run, self._supervisor, prepared.command.refusal)
        return child

    def give_up(self, prepared: PreparedRun) -> None:
        """Mark the run as failed, as its command could not be started."""
        prepared.run.status, prepared.run.ended = FAILED, rundir.utc_now()
        write_run(prepared.path, prepared.run)

    @property
    def _is_strict(self) -> bool:
        return self._plan.mode == REPLAY and self._plan.policy == "strict"

    def watches(self) -> Iterable[Watch | None]:
        """Return what ends a strict replay that lacks entropy, or a run that has reached its end early."""
        return [Termination(self._must_stop) if self._is_strict else self._early_end]

    def _must_stop(self) -> bool:
        assert self._unreached is not None
        return _is_written(self._unreached.run_directory / rundir.STOPPED) or bool(self._unreached.receive())

    def finish(
        self,
        prepared: PreparedRun,
        exit_status: ExitStatus,
        interrupted: Callable[[], bool],
        companions: Sequence[RunCompanion],
    ) -> Finish:
        """Stop the supervisor and the bounds of the command, and return what closes the run."""
        from reprokit.run.finish import Finish, RecordingState
        from reprokit.run.stragglers import outliving

        plan, path, run = prepared.plan, prepared.path, prepared.run
        if self._profiled is not None:
            exit_status = self._profiled.end(exit_status)
        elif self._early_end is not None:
            exit_status = self._early_end.finish(exit_status)
        has_running_programs = _goes_on(path, self._supervisor)
        run.outliving = outliving(path) if has_running_programs else []
        run.warnings.extend(self._supervisor.stop() if self._supervisor is not None else ())
        assert self._unreached is not None
        run.out_of_reach = self._unreached.close()
        if self._is_strict:
            reason_file = path / rundir.STOPPED
            self._stopped = _reason(reason_file) if reason_file.exists() else run.out_of_reach_in_words
        if self._stopped:
            run.warnings.append(f"the strict replay was stopped: {self._stopped}")
        recording_state = RecordingState(
            prepared.command.refusal.why, has_running_programs, self._tracing, self._profiled
        )
        return Finish(plan, path, run, exit_status, interrupted, companions, recording_state)

    def leave(self, prepared: PreparedRun) -> None:
        """Report where the run is; raise ReplayStopped if a strict replay was stopped."""
        say(f"run: {shown(prepared.path)}")
        say_captured(prepared.plan, prepared.path, prepared.run)
        if self._stopped:
            raise errors.ReplayStopped(self._stopped)


def snapshot_hook_for(plan: Plan, path: Path) -> SnapshotHook | None:
    """Return what runs the user's --on-capture command for each snapshot; None if there is no such command."""
    if plan.capture is None or not plan.capture.hook:
        return None
    from reprokit.run.snapshots import SnapshotHook

    return SnapshotHook(plan.capture.hook, path, plan.capture.fallback_of(path))


def upload_for(plan: Plan, path: Path) -> Upload | None:
    """Return what uploads the run to an object store; None if --push was not given."""
    if not plan.push:
        return None
    from reprokit.run.upload import Upload

    return Upload(path, plan.push)


def rule_watch_for(plan: Plan, path: Path, run: RunFile) -> RuleWatch | None:
    """Return what judges the training by rules while it runs; None if no rules were given."""
    if plan.rules is None:
        return None
    from reprokit.run.rule_watch import RuleWatch

    return RuleWatch(plan.rules, path, run.run_id)


def time_limit_for(plan: Plan, start: float) -> Termination | None:
    """Return what ends a command that exceeds its timeout; None if it has none."""
    if plan.timeout is None:
        return None
    deadline = start + plan.timeout
    return Termination(lambda: time.monotonic() > deadline)


def say_captured(plan: Plan, path: Path, run: RunFile) -> None:
    """Print the last lines of a run that captured snapshots."""
    if run.snapshots:
        from reprokit.run import snapshots

        snapshots.say_found(path, plan.command, run.snapshots)


def _goes_on(path: Path, supervisor: Supervisor | None) -> bool:
    """Return whether a program of the run still runs after its command has ended."""
    if supervisor is not None and supervisor.is_on:
        return supervisor.has_programs()
    from reprokit.run.stragglers import has_stragglers

    return has_stragglers(path)


def _say_supervised(run: RunFile, supervisor: Supervisor | None, refusal: commands.ShimRefusal) -> None:
    """Record the supervisor's state; warn if the command's own entropy is not covered."""
    state = WITHOUT_SUPERVISOR if supervisor is None else supervisor.state or off("it was not started")
    run.supervisor = state
    if refusal.why and (refusal.is_foreign or not state.is_on):
        text = f"the command's own requests: {refusal.why}, supervisor {state.words}"
        run.uncovered.append(Uncovered(source="command", text=text))
        consequence = f"its entropy is not {past_tense(run.kind)}: supervisor {state.words}"
        warn(f"the shim cannot load: {refusal.why}; {consequence}")


def start_error(command: Command, directory: Path, error: OSError) -> errors.LaunchError:
    """Return the error for a command that the kernel does not start."""
    is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    lacks_loader = is_missing and (directory / command.program).exists()
    why = "the dynamic loader that it names is missing" if lacks_loader else error.strerror
    message = f"{command.arguments[0]}: {why}; it cannot be run"
    if is_missing:
        return errors.CommandNotFound(message)
    return errors.CommandNotExecutable(message)


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


def _reason(reason_file: Path) -> str:
    try:
        with open(reason_file, "rb") as file:
            reason = file.read(MAX_REASON).decode("utf-8", "replace").strip()
    except OSError:
        reason = ""
    return reason or "the training asked for entropy that the recording does not hold; replay with --policy derive"
