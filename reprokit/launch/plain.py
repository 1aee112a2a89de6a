"""Runs a command without the shim: with the agent in it, which may take down what comes of it, or with nothing.

No entropy is recorded. Which files an observed or untouched command wrote is found by looking before and after.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reprokit import native, pending, rundir, trails
from reprokit.capture import files
from reprokit.errors import CannotWriteRun, ReprokitError, reason
from reprokit.launch import agentlines, environment, outputs, snapshots
from reprokit.launch import command as commands
from reprokit.launch.command import Command
from reprokit.launch.environment import ChildEnvironment
from reprokit.launch.host import Gathering
from reprokit.launch.messages import say, warn
from reprokit.launch.placing import Placed, placed
from reprokit.launch.process import Child, Ended, Interruption, Used
from reprokit.launch.run import (
    Made,
    hook_of,
    limit_of,
    own_environment,
    patched_by,
    run_file,
    say_captured,
    start_error,
    together,
    words_of_patches,
    write_agent_plan,
)
from reprokit.launch.rundirectory import NewRun, remove, shown
from reprokit.launch.written import Watched
from reprokit.model.run import FINISHED, RunFile
from reprokit.model.states import LOADED, not_loaded, off
from reprokit.plan import Plan

NOTHING = off("nothing was recorded", "not-recorded")
UNTOUCHED = not_loaded("the command was left untouched", "not-observed")

Watch = Callable[[Child], None]


class Prepared(msgspec.Struct, frozen=True):
    """Everything that is ready before the child starts."""

    plan: Plan
    command: Command
    environment: ChildEnvironment
    path: Path
    run: RunFile


def execute(plan: Plan, watch: Watch | None = None) -> Made:
    """Execute the plan; its directory stays only where it was asked for, or holds something."""
    own = own_environment(plan)
    command = commands.resolve(plan.command, own.get("PATH"), plan.working_directory)
    with placed(native.shim_path()) as place:
        new = NewRun(plan.output, plan.overwrite, becomes_last=False)
        try:
            prepared = _prepare(plan, command, own, place, new)
        except OSError as error:
            new.discard()
            raise CannotWriteRun(f"{new.place}: {error.strerror}; choose another place with -o") from None
        except BaseException:
            new.discard()
            raise
        return Made(prepared.path, *_execute(prepared, watch))


def _prepare(plan: Plan, command: Command, own: dict[str, str], place: Placed, new: NewRun) -> Prepared:
    patched = patched_by(plan, command, own)
    given = own if patched is None else patched.variables
    variables = environment.build_plain(given, new.place, place.bootstrap)
    if plan.untouched:
        variables = ChildEnvironment(given, environment.size_of(given))
    run = run_file(plan, own, variables)
    run.key, run.supervisor = "", NOTHING
    run.shim = not_loaded("nothing was recorded", "not-recorded")
    run.trail = plan.trail if plan.observed else NOTHING
    run.patches = [] if patched is None else patched.states
    write_agent_plan(plan, new, place, patched)
    rundir.write_json(new.path / rundir.RUN, run)
    return Prepared(plan, command, variables, new.take_place(), run)


def _execute(prepared: Prepared, watch: Watch | None) -> tuple[Ended, Used]:
    """Start the child, wait for it, close the run; from here on no failure of reprokit's counts."""
    plan, run, path = prepared.plan, prepared.run, prepared.path
    for words in words_of_patches(run):
        warn(words)
    files = Watched(plan.working_directory, (path, *plan.aside)) if plan.observed or plan.untouched else None
    began = time.monotonic()
    try:
        child = Child(prepared.command, plan.working_directory, prepared.environment.variables, randomized=True)
    except OSError as error:
        remove(path)
        raise start_error(prepared.command.arguments[0], error) from None
    run.address_randomization = child.address_randomization
    gathering = _gathering(prepared) if plan.observed else None  # only now: it would have delayed the start
    hook = hook_of(plan, path)
    ended = child.wait(together(hook, watch, limit_of(plan, began)))
    interruption = Interruption()
    run.exit_code, run.signal = ended.exit_code, ended.signal_name
    run.duration, run.ended = time.monotonic() - began, rundir.utc_now()
    try:
        run.warnings.extend(hook.finish(lambda: interruption.asked) if hook is not None else ())
        if files is not None:
            _take_down(prepared, files, interruption, gathering)
        _close(prepared)
    except (ReprokitError, OSError, MemoryError) as error:
        warn(str(error) or reason(error))
    return ended, child.used


def _gathering(prepared: Prepared) -> Gathering:
    command, plan = prepared.command, prepared.plan
    return Gathering(prepared.path, command.program, command.arguments, plan.working_directory, plan.data)


def _take_down(prepared: Prepared, files: Watched, interruption: Interruption, gathering: Gathering | None) -> None:
    """What came of the command: its outputs, and what the agent wrote of it."""
    plan, run, path = prepared.plan, prepared.run, prepared.path
    files.write(path)
    if not files.is_complete:
        run.warnings.append("too many files lie below the command's directory: which it wrote was not looked for")
    found = outputs.collect(path, plan.working_directory, lambda: interruption.asked, plan.keep_outputs)
    rundir.write_json(path / rundir.OUTPUTS, found)
    run.outputs = rundir.seal_file(path / rundir.OUTPUTS)
    if gathering is not None:
        pending.gather(path, path / rundir.METRICS)
        run.metrics = rundir.seal_file(path / rundir.METRICS)
        run.trails = trails.seal(path / rundir.TRAIL)
        run.evaluation = rundir.seal_evaluation(path)
        facts = gathering.complete(agentlines.read(path), lambda: interruption.asked)
        rundir.write_json(path / rundir.ENVIRONMENT, facts)
        run.environment = rundir.seal_file(path / rundir.ENVIRONMENT)


def _close(prepared: Prepared) -> None:
    """Gather what the agent left, write run.json for the last time, and say what there is."""
    plan, run, path = prepared.plan, prepared.run, prepared.path
    told = agentlines.read(path)
    absent = UNTOUCHED if plan.untouched else not_loaded("no Python process of the run began it")
    run.agent = LOADED if told.loaded else absent
    run.captures_unavailable = told.captures_unavailable
    run.warnings.extend([*told.warnings, *snapshots.remove_partials(path), *_of_patches(run, told)])
    run.snapshots = files.collect(path)
    run.status = FINISHED
    if plan.capture is not None and not told.loaded:
        run.warnings.append("nothing was watched: no Python process of the run began the agent")
    rundir.write_json(path / rundir.RUN, run)
    if plan.capture is not None and plan.capture.redo is not None:
        return  # who asked for it reads the result
    for words in run.warnings:
        warn(words)
    if plan.output is not None or run.snapshots:
        say(f"run: {shown(path)}")
    else:
        remove(path)
    say_captured(plan, path, run)


def _of_patches(run: RunFile, told: agentlines.AgentFacts) -> list[str]:
    """What became of the patches, as far as it was not said before the start."""
    if not run.patches:
        return []
    from reprokit.launch import patched

    before, run.patches = run.patches, patched.at_end(run.patches, told)
    return list(patched.words_after(before, run.patches))
