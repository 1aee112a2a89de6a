"""Makes a run: from a plan to a finished run directory, with the training's status passed on."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reprokit import native, rundir
from reprokit.errors import (
    CannotWriteRun,
    CommandNotExecutable,
    CommandNotFound,
    LaunchError,
    NestedRun,
    ReplayStopped,
)
from reprokit.launch import command as commands
from reprokit.launch import environment as environments
from reprokit.launch import host, variables
from reprokit.launch.command import Command
from reprokit.launch.environment import ChildEnvironment
from reprokit.launch.messages import say, warn
from reprokit.launch.placing import Placed, placed
from reprokit.launch.process import Child, Ended, Interruption, Termination, Used
from reprokit.launch.rundirectory import NewRun, shown
from reprokit.launch.supervisor import Supervisor
from reprokit.launch.unreached import Unreached
from reprokit.model.run import FAILED, RunFile
from reprokit.model.states import WITHOUT_SUPERVISOR, Uncovered, off
from reprokit.plan import REPLAY, Plan, Profiling, past_tense
from reprokit.version import VERSION

if TYPE_CHECKING:
    from reprokit.launch.patched import Patched
    from reprokit.launch.profiled import Profiled
    from reprokit.launch.prove import Tracing
    from reprokit.launch.snapshots import Hook

RESERVED = 128 << 10  # bytes: run.json, environment.json and outputs.json of a usual run
MAX_REASON = 4096  # bytes of the file in which the shim says why a strict replay stopped


class Prepared(msgspec.Struct, frozen=True):
    """Everything that is ready before the child starts."""

    plan: Plan
    command: Command
    environment: ChildEnvironment
    path: Path
    run: RunFile
    tracing: Tracing | None  # --prove
    profiled: Profiled | None  # reprokit profile


class Made(msgspec.Struct, frozen=True):
    """A run that was made: where it is, and how its training ended."""

    path: Path
    ended: Ended
    used: Used = Used()


def run(plan: Plan) -> Ended:
    """Execute the plan, on a supported platform; returns how the training ended."""
    return execute(plan).ended


def execute(plan: Plan) -> Made:
    """The same, for those who go on with the run directory."""
    own = own_environment(plan)
    if plan.hide_rdrand:
        own = environments.without_rdrand(own)
    command = commands.resolve(plan.command, own.get("PATH"), plan.working_directory)
    native.load_shim()
    with placed(native.shim_path()) as place:
        new = NewRun(plan.output, plan.overwrite)
        try:
            prepared = _prepare(plan, command, own, place, new)
        except OSError as error:
            new.discard()
            raise CannotWriteRun(f"{new.place}: {error.strerror}; choose another place with -o") from None
        except BaseException:
            new.discard()
            raise
        return Made(prepared.path, *_execute(prepared))


def own_environment(plan: Plan) -> dict[str, str]:
    """The user's variables; in a replay the kept ones as they were."""
    if environments.RUN in os.environ and native.shim_path().name in os.environ.get("LD_PRELOAD", ""):
        raise NestedRun("reprokit runs inside a run already; start it from a shell of its own")
    own = environments.without_own(environments.inherited())
    return own if plan.variables is None else variables.given_again(own, plan.variables)


def _prepare(plan: Plan, command: Command, own: dict[str, str], place: Placed, new: NewRun) -> Prepared:
    """Write what shim and agent need, and put the run directory in its place."""
    patched = patched_by(plan, command, own)
    given = own if patched is None else patched.variables
    environment = environments.build(given, new.place, place.shim, place.bootstrap, plan.environment_size)
    run = run_file(plan, own, environment)
    run.patches = [] if patched is None else patched.states
    native.write_shim_plan(
        new.path / rundir.SHIM_PLAN,
        mode=plan.mode,
        policy=plan.policy,
        key=plan.key,
        profile=plan.profile,
        record_crypto=plan.record_crypto,
        shim=place.shim,
        python_path=place.bootstrap,
        keyed=plan.keyed,
        clock=plan.clock,
        hide_rdrand=plan.hide_rdrand,
        varied=plan.varied,
    )
    tracing = _tracing(new.place, place) if plan.prove else None
    profiled = _profiled(plan.profiling, new) if plan.profiling is not None else None
    run.profiling = profiled.facts if profiled is not None else None
    (new.path / rundir.ENTROPY).mkdir(mode=0o700)
    write_agent_plan(plan, new, place, patched)
    if plan.replay_of is not None:
        run.warnings.extend(_hand_seeds_on(Path(plan.replay_of.path), new.path, plan.force))
    rundir.write_json(new.path / rundir.RUN, run)
    _reserve(new.path / rundir.RESERVE)
    return Prepared(plan, command, environment, new.take_place(), run, tracing, profiled)


def write_agent_plan(plan: Plan, new: NewRun, place: Placed, patched: Patched | None) -> None:
    """plan.json, and the directories that the agent is told of."""
    if plan.capture is not None:
        (new.path / rundir.SNAPSHOTS).mkdir(mode=0o700)
    snapshots = new.place / rundir.SNAPSHOTS
    for_agent = plan.for_agent(place.shim, native.trail_path(), snapshots, [] if patched is None else patched.for_agent)
    rundir.write_json(new.path / rundir.AGENT_PLAN, for_agent)
    variables.write_key(new.path / rundir.VARIABLE_KEY, None if plan.replay_of is None else Path(plan.replay_of.path))


# What few runs need is imported by them: each millisecond before the start delays every training.
def _tracing(directory: Path, place: Placed) -> Tracing:
    from reprokit.launch import prove

    return prove.find(directory, place.shim)


def patched_by(plan: Plan, command: Command, own: dict[str, str]) -> Patched | None:
    """The patches that the plan asks for, if it asks for any."""
    if not plan.patches:
        return None
    from reprokit.launch import patched

    return patched.prepare(plan.patches, command, own, plan.working_directory)


def _profiled(profiling: Profiling, new: NewRun) -> Profiled:
    from reprokit.launch.profiled import Profiled

    (new.path / rundir.PROFILE).mkdir(mode=0o700)
    return Profiled(profiling, new.place)


def _hand_seeds_on(recording: Path, directory: Path, force: bool) -> list[str]:
    from reprokit.launch import seeds

    problem = seeds.hand_on(recording, directory, force=force)
    return [problem] if problem else []


def _on_processors(count: int | None) -> AbstractContextManager[None]:
    if count is None:
        return nullcontext()
    from reprokit.launch.pinning import on_processors

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


def _execute(prepared: Prepared) -> tuple[Ended, Used]:
    """Start the child, wait for it, close the run; from here on no failure of reprokit's counts."""
    plan, run, path = prepared.plan, prepared.run, prepared.path
    if plan.mode == REPLAY:
        say(f"replaying: {shlex.join(plan.command)}")
        if plan.record_crypto:
            warn("the bytes of cryptographic libraries were recorded too: keys that are made now are the same again")
    for words in (*(f"changed: {change}" for change in plan.changed), *run.warnings, *words_of_patches(run)):
        warn(words)
    not_loaded = prepared.command.not_loaded
    supervisor, unreached = _supervisor(prepared), Unreached(path)
    profiled = prepared.profiled
    bound = profiled.begin() if profiled is not None else None
    began = time.monotonic()
    child = _start(prepared, supervisor)
    _say_supervised(run, supervisor, not_loaded)
    command, directory = prepared.command, plan.working_directory
    gathering = host.Gathering(path, command.program, command.arguments, directory, plan.data)
    run.address_randomization = child.address_randomization
    _write(path, run)
    # Only now, as they would have delayed the training's start.
    from reprokit.launch.finish import Finish

    stopped, is_strict = path / rundir.STOPPED, plan.mode == REPLAY and plan.policy == "strict"
    hook = hook_of(plan, path)
    ended = child.wait(
        together(
            Termination(lambda: _is_written(stopped) or bool(unreached.heard())) if is_strict else bound,
            hook,
            limit_of(plan, began),
        )
    )
    interruption = Interruption()
    if profiled is not None:
        ended = profiled.end(ended)
    goes_on = _goes_on(path, supervisor)
    run.warnings.extend(supervisor.stop() if supervisor is not None else ())
    run.out_of_reach = unreached.close()
    stop = (_reason(stopped) if stopped.exists() else run.out_of_reach_in_words) if is_strict else ""
    if stop:
        run.warnings.append(f"the strict replay was stopped: {stop}")
    finish = Finish(plan, path, run, lambda: interruption.asked, prepared.tracing, goes_on, profiled, hook)
    finish.close(ended, began, not_loaded, gathering)
    say(f"run: {shown(path)}")
    say_captured(plan, path, run)
    if stop:
        raise ReplayStopped(stop)
    return ended, child.used


def words_of_patches(run: RunFile) -> Iterable[str]:
    """What must be said of the patches before the start."""
    if not run.patches:
        return ()
    from reprokit.launch.patched import words_before

    return words_before(run.patches)


def hook_of(plan: Plan, path: Path) -> Hook | None:
    """What runs the user's command for each snapshot, where there is one."""
    if plan.capture is None or not plan.capture.hook:
        return None
    from reprokit.launch.snapshots import Hook

    return Hook(plan.capture.hook, path)


def limit_of(plan: Plan, began: float) -> Termination | None:
    """What ends a command that takes longer than it may."""
    if plan.timeout is None:
        return None
    deadline = began + plan.timeout
    return Termination(lambda: time.monotonic() > deadline)


def together(*watches: Callable[[Child], None] | None) -> Callable[[Child], None] | None:
    """Call all that watch the child."""
    there = [watch for watch in watches if watch is not None]
    if len(there) < 2:
        return there[0] if there else None

    def both(child: Child) -> None:
        for watch in there:
            watch(child)

    return both


def say_captured(plan: Plan, path: Path, run: RunFile) -> None:
    """The last lines of a run that captured something."""
    if run.snapshots:
        from reprokit.launch import snapshots

        snapshots.say_found(path, plan.command, run.snapshots)


def _goes_on(path: Path, supervisor: Supervisor | None) -> bool:
    """Whether some program of the run does, after its command."""
    if supervisor is not None and supervisor.is_on:
        return supervisor.has_programs()
    from reprokit.launch.stragglers import has_stragglers

    return has_stragglers(path)


def _supervisor(prepared: Prepared) -> Supervisor | None:
    """Ready to start; one that has to take rights away does not if the command needs some."""
    if not prepared.plan.supervisor:
        return None
    rights = not prepared.command.gains_rights
    is_traced = prepared.tracing is not None or (prepared.profiled is not None and prepared.profiled.traces)
    return Supervisor(prepared.path, may_forbid_rights=rights, sees_exec=not is_traced)


def _say_supervised(run: RunFile, supervisor: Supervisor | None, not_loaded: str) -> None:
    """What is covered, once the command is there; a line only where it matters for the command itself."""
    state = WITHOUT_SUPERVISOR if supervisor is None else supervisor.state or off("it was not started")
    run.supervisor = state
    is_foreign = not_loaded.endswith(commands.FOREIGN)  # its system calls have other numbers
    if not_loaded and (is_foreign or not state.is_on):
        text = f"the command's own requests: {not_loaded}, supervisor {state.words}"
        run.uncovered.append(Uncovered(source="command", text=text))
        what = f"its entropy is not {past_tense(run.kind)}: supervisor {state.words}"
        warn(f"the shim cannot load: {not_loaded}; {what}")


def _start(prepared: Prepared, supervisor: Supervisor | None) -> Child:
    command, variables = prepared.command, prepared.environment.variables
    if prepared.tracing is not None:
        command, variables = prepared.tracing.wrap(command, variables)
    if prepared.profiled is not None:
        command, variables = prepared.profiled.wrap(command, variables)
    try:
        with _on_processors(prepared.plan.processors):
            return Child(command, prepared.plan.working_directory, variables, supervisor)
    except OSError as error:
        prepared.run.status, prepared.run.ended = FAILED, rundir.utc_now()
        _write(prepared.path, prepared.run)
        raise start_error(prepared.command.arguments[0], error) from None


def start_error(name: str, error: OSError) -> LaunchError:
    """What is said of a command that the kernel does not start."""
    what = f"{name}: {error.strerror}; it cannot be run"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return CommandNotFound(what)
    return CommandNotExecutable(what)


def _write(path: Path, run: RunFile) -> None:
    try:
        rundir.write_json(path / rundir.RUN, run)
    except CannotWriteRun as error:
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
