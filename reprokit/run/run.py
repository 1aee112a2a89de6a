"""Executes a run: prepares its directory, starts the command, waits for it and collects the results.

What a run consists of stands in `parts/`; here is the order in which its parts come to their turn. The training's exit
status is passed on.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from reprokit.core import errors, native
from reprokit.core.messages import say, warn
from reprokit.core.version import VERSION
from reprokit.model.plan import RECORD, REPLAY, RUN, Plan, ReplayStart
from reprokit.model.run import FAILED, FINISHED, RunFile, StartFiles
from reprokit.model.run_warning import RunWarning
from reprokit.run import command as commands
from reprokit.run import environment as environments
from reprokit.run import host
from reprokit.run.command import Command
from reprokit.run.environment import ChildEnvironment, PreloadPaths, preload_paths
from reprokit.run.part import CHANGED, Closing, Launch, Preparation, Watch
from reprokit.run.parts import Parts
from reprokit.run.process import Child, ExitStatus, LateSignals, ResourceUsage
from reprokit.run.rundirectory import NewRun, remove
from reprokit.run_files import rundir, variables

RESERVED = 128 << 10  # bytes: the size of run.json, environment.json and outputs.json of a usual run
LITTLE = 64 << 10  # free bytes below which a disk counts as full
CLOCK_REALTIME_COARSE = 5  # of Linux; file systems take their times from it
MAX_TICK = 10  # milliseconds


class CompletedRun(msgspec.Struct, frozen=True):
    """A run that was executed: its directory, and how its training ended."""

    path: Path
    ended: ExitStatus
    usage: ResourceUsage = ResourceUsage()
    interrupted: bool = False  # whether a signal asked it to end, as Ctrl-C


def execute(plan: Plan, *watches: Watch) -> CompletedRun:
    """Execute the plan on a supported platform, from its preparation to the finished run directory."""
    user_variables = own_environment(plan)
    command = commands.resolve(plan.command, user_variables.get("PATH"), plan.working_directory)
    if plan.mode != RUN:
        native.require_shim()
    parts = Parts(plan)
    with preload_paths() as paths:
        new_run = NewRun(plan.output, plan.overwrite, becomes_last=plan.mode != RUN)
        with ExitStack() as stack:
            try:
                start = stack.enter_context(_started_from(plan, new_run.place))
                if plan.continues:  # what was put in place is older than the run, which keeps what it changes
                    _await_tick(time.time_ns())
                launch = _prepare(plan, command, user_variables, parts, paths, new_run, start)
            except OSError as error:
                new_run.discard()
                raise errors.CannotWriteRun(
                    f"{new_run.place}: {error.strerror}; choose another place with -o"
                ) from None
            except BaseException:
                new_run.discard()
                raise
            return _execute(launch, parts, watches)


def _started_from(plan: Plan, place: Path) -> AbstractContextManager[StartFiles | None]:
    """Return a context in which the files are there from which the run is to start."""
    if plan.mode != REPLAY or plan.start is ReplayStart.HERE:
        return nullcontext(plan.started_from or StartFiles(here=True) if plan.mode == REPLAY else None)
    from reprokit.run import starting_files

    return starting_files.for_launcher(plan, place)


def own_environment(plan: Plan) -> dict[str, str]:
    """Return the user's environment variables; in a replay, those that the recording kept have their old values."""
    if environments.RUN in os.environ and native.preload_path().name in os.environ.get("LD_PRELOAD", ""):
        advice = "start it from a shell of its own, or below `if __name__ == '__main__':` of a script"
        raise errors.NestedRun(f"reprokit runs inside a run already; {advice}")
    user_variables = environments.without_own(environments.inherited())
    user_variables = environments.without_rdrand(user_variables) if plan.hide_rdrand else user_variables
    return user_variables if plan.variables is None else variables.given_again(user_variables, plan.variables)


def _prepare(
    plan: Plan,
    command: Command,
    user_variables: dict[str, str],
    parts: Parts,
    paths: PreloadPaths,
    new_run: NewRun,
    start: StartFiles | None,
) -> Launch:
    """Write what shim and agent need into the new run directory, and move it to its final path."""
    own = user_variables
    for part in parts:
        own = part.variables(command, own)
    environment = _environment(plan, own, new_run, paths)
    run = run_file(plan, user_variables, environment)
    run.start = start
    preparation = Preparation(plan, new_run, paths, run)
    for part in parts:
        part.prepare(preparation)
    _write_agent_plan(preparation)
    rundir.write_json(new_run.path / rundir.RUN, run)
    _reserve(new_run.path / rundir.RESERVE)
    return Launch(plan, command, command, environment.variables, new_run.take_place(), run)


def _environment(plan: Plan, user_variables: dict[str, str], new_run: NewRun, paths: PreloadPaths) -> ChildEnvironment:
    """Return the user's variables with those that load shim and agent, or start the agent alone, or none."""
    if plan.mode != RUN:
        user_variables = {**user_variables, **plan.own_variables}
        return environments.build(user_variables, new_run.place, paths.preload, paths.bootstrap, plan.environment_size)
    if plan.untouched:
        return ChildEnvironment(user_variables, environments.size_of(user_variables))
    return environments.build_plain(user_variables, new_run.place, paths.bootstrap)


def _write_agent_plan(preparation: Preparation) -> None:
    """Write plan.json."""
    plan, new_run = preparation.plan, preparation.new_run
    snapshots = new_run.place / rundir.SNAPSHOTS
    patches = preparation.agent_patches
    for_agent = plan.for_agent(preparation.paths.shim, native.trail_path(), snapshots, patches)
    if plan.kind == RECORD:
        rundir.write_json(new_run.path / rundir.OPTIONS, plan.recording_options())
    rundir.write_json(new_run.path / rundir.AGENT_PLAN, for_agent)
    variables.write_key(
        new_run.path / rundir.VARIABLE_KEY, None if plan.replay_of is None else Path(plan.replay_of.path)
    )


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
        kind=plan.kind,
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
        trail_every=plan.trail_every,
        batch_digests=plan.batch_digests,
        started=rundir.utc_now(),
        launcher_pid=os.getpid(),
        launcher_started=host.started_at(),
        host=os.uname().nodename,
        environment_size=environment.size,
        replay_of=None if plan.continues else plan.replay_of,
        continues=plan.continues,
        recipe=plan.recipe,
        capture=None if plan.capture is None else plan.capture.as_asked(),
        changed=list(plan.changed),
    )
    if environment.warning:
        run.warnings.append(RunWarning(environment.warning, "environment-size"))
    return run


def _execute(launch: Launch, parts: Parts, watches: Sequence[Watch]) -> CompletedRun:
    """Start the child, wait for it and close the run; once the child runs, no failure of reprokit ends the run."""
    plan, run, path = launch.plan, launch.run, launch.path
    _say_beginning(plan, run)
    for part in parts:
        part.arm(launch)
    _await_tick((path / rundir.AGENT_PLAN).stat().st_ctime_ns)
    start = time.monotonic()
    try:
        child = _start(launch)
    except OSError as error:
        _give_up(launch)
        raise start_error(launch.command, plan.working_directory, error) from None
    for part in chain(parts, parts.late()):  # late ones only now: their import would have delayed the training
        part.started(launch)
    run.address_randomization = child.address_randomization
    _write_run(path, run)
    ended = child.wait([*(watch for part in parts for watch in part.watches()), *watches])
    late_signals = LateSignals()
    for part in parts:
        ended = part.stop(ended)
    closing = Closing(plan, path, run, ended, lambda: late_signals.interrupted)
    close(closing, parts, start)
    for part in parts:
        part.leave(closing)
    if closing.failure is not None:
        raise closing.failure
    return CompletedRun(path, closing.ended, child.used, child.interrupted)


def _start(launch: Launch) -> Child:
    plan = launch.plan
    with _on_processors(plan.processors):
        return Child(
            launch.executed,
            plan.working_directory,
            launch.variables,
            launch.supervisor,
            randomized=launch.randomized,
        )


def _give_up(launch: Launch) -> None:
    """Mark a run as failed whose command could not be started; nothing is left of one that records nothing."""
    if launch.plan.mode == RUN:
        return remove(launch.path)
    launch.run.status, launch.run.ended = FAILED, rundir.utc_now()
    return _write_run(launch.path, launch.run)


def close(closing: Closing, parts: Parts, start: float) -> None:
    """Complete run.json and write it, with everything else that is kept of the run."""
    run = closing.run
    for part in parts:
        closing.attempt(partial(part.ended, closing))
    closing.attempt(lambda: _use_reserve(closing))
    run.exit_code, run.signal = closing.ended.exit_code, closing.ended.signal_name
    run.duration, run.ended = time.monotonic() - start, rundir.utc_now()
    for part in parts:
        closing.attempt(partial(part.finish, closing))
    for step in closing.later:
        closing.attempt(step)
    run.status = FINISHED
    closing.attempt(lambda: rundir.write_json(closing.path / rundir.RUN, run))


def _use_reserve(closing: Closing) -> None:
    """Free the reserved disk space; warn if the disk is full, as lines of the agent's may then be lost."""
    file_system = os.statvfs(closing.path)
    closing.disk_is_full = file_system.f_bavail * file_system.f_frsize < LITTLE
    if closing.disk_is_full:
        closing.warn("the disk is full: metrics that the training wrote last may be missing", "disk-full")
    (closing.path / rundir.RESERVE).unlink(missing_ok=True)


def _await_tick(written: int) -> None:
    """Wait until file systems give later times than a time that they gave: what changes then is of the run."""
    for _ in range(MAX_TICK):
        if time.clock_gettime_ns(CLOCK_REALTIME_COARSE) > written:
            break
        time.sleep(0.001)


def _say_beginning(plan: Plan, run: RunFile) -> None:
    if plan.mode == REPLAY:
        say(f"{'continuing' if plan.continues else 'replaying'}: {shlex.join(plan.command)}")
        if plan.record_crypto:
            text = "the bytes of cryptographic libraries were recorded too: keys that are made now are the same again"
            warn(text, "keys-repeat")
    for warning in (*(RunWarning(f"changed: {change}", CHANGED) for change in plan.changed), *run.warnings):
        warn(warning.text, warning.code)


def start_error(command: Command, directory: Path, error: OSError) -> errors.LaunchError:
    """Return the error for a command that the kernel does not start."""
    is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    lacks_loader = is_missing and (directory / command.program).exists()
    why = "the dynamic loader that it names is missing" if lacks_loader else error.strerror
    message = f"{command.arguments[0]}: {why}; it cannot be run"
    if is_missing:
        return errors.CommandNotFound(message)
    return errors.CommandNotExecutable(message)


def _write_run(path: Path, run: RunFile) -> None:
    try:
        rundir.write_json(path / rundir.RUN, run)
    except errors.CannotWriteRun as error:
        run.warnings.append(RunWarning(str(error), error.slug))
        warn(str(error), error.slug)
