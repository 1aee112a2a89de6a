"""Reads a recording and makes the plan of its replay, with what is known to be different now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reprokit import entropy, rundir
from reprokit.errors import NotReplayable, RunDamaged, RunInProgress, WorkingDirectoryMissing
from reprokit.launch import compute_pins, host, variables
from reprokit.launch import environment as environments
from reprokit.model.run import FAILED, ReplayOf, RunFile, timestamp
from reprokit.model.states import ON, WITHOUT_SUPERVISOR, Switch, off
from reprokit.plan import KEEP_OUTPUTS, RECORD, REPLAY, RUN, CapturePlan, Plan, RulesPlan
from reprokit.printable import printable
from reprokit.rundir import RunDirectory
from reprokit.version import VERSION

if TYPE_CHECKING:
    from reprokit.model.question import Question

LONGEST = 200  # characters of a fact, which may come from somebody else's file


def replay_plan(
    recording: RunDirectory,
    output: Path | None,
    command: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
    policy: str = "derive",
    supervisor: bool = True,
    trail: Switch = ON,
    keep_outputs: int = KEEP_OUTPUTS,
    capture: CapturePlan | None = None,
    force: bool = False,
    pin_versions: bool = False,
    question: Question | None = None,
    rules: RulesPlan | None = None,
) -> Plan:
    """Return the plan that gives the recorded command its recorded entropy again."""
    _require_replayable(recording)
    run = recording.run = _here(recording.run)
    place = Path(os.path.realpath(recording.path))
    if output is not None and place in (wanted := Path(os.path.realpath(output)), *wanted.parents):
        raise NotReplayable(f"{output} is the recording itself, or inside of it; choose another directory with -o")
    directory = Path(run.working_directory)
    if not directory.is_dir():
        raise WorkingDirectoryMissing(
            f"{directory}, where the command was recorded, is not there; make it available again"
        )
    chosen = command or tuple(run.command)
    pins = compute_pins.pins(recording)
    return Plan(
        mode=REPLAY,
        command=chosen,
        working_directory=directory,
        output=output,
        overwrite=overwrite,
        policy=policy,
        key=_key(recording),
        record_crypto=run.include_crypto,
        keyed=run.keyed,
        clock=run.clock,
        hide_rdrand=run.hide_rdrand,
        supervisor=supervisor and run.supervisor != WITHOUT_SUPERVISOR,
        trail=_trail(recording, trail),
        batch_digests=run.batch_digests,
        orders=_keeps_orders(recording),
        console=recording.keeps_console,
        keep_outputs=keep_outputs,
        data=_declared(recording),
        profile=place / rundir.ENTROPY,
        replay_of=ReplayOf(
            path=str(place), run_id=run.run_id, profile_digest=run.profile.digest if run.profile else ""
        ),
        variables={**run.variables, **pins.variables},
        processors=pins.processors,
        pools=pins.pools,
        versions=_versions(recording) if pin_versions else {},
        environment_size=run.environment_size,
        patches=tuple(patch.text for patch in run.patches),
        recipe=run.recipe,
        capture=capture or _capture(run),
        force=force,
        question=question,
        rules=rules,
        changed=(*_changes(recording, chosen, directory), *pins.changes),
    )


def _keeps_orders(recording: RunDirectory) -> bool:
    """Return whether its agents watched who came first: those of a replay allocate memory as they did."""
    return not (
        recording.has(rundir.AGENT_PLAN) and recording.decode(rundir.AGENT_PLAN, dict[str, Any]).get("no_orders")
    )


def _here(run: RunFile) -> RunFile:
    """Return the run with the current directory, where its code must be, if it came in a bundle without its paths."""
    if run.bundled is None or run.working_directory != rundir.BUNDLED_DIRECTORY:
        return run
    here, placeholder = os.getcwd(), re.compile(re.escape(rundir.BUNDLED_DIRECTORY) + r"(?![A-Za-z0-9._-])")

    def placed(text: str) -> str:
        return placeholder.sub(lambda _: here, text)

    names = {name: placed(value) for name, value in run.variables.items()}
    return msgspec.structs.replace(run, working_directory=here, command=list(map(placed, run.command)), variables=names)


def _trail(recording: RunDirectory, wanted: Switch) -> Switch:
    """As in the recording, though no step may have come: memory is then used as it was."""
    recorded = recording.run.trail
    if recorded is not None and recorded.is_on:
        return recorded if wanted == ON else wanted
    is_written = recording.has(rundir.TRAIL) or recording.run.trails is not None
    return wanted if is_written else off("the recording has none", "not-in-recording")


def _capture(run: RunFile) -> CapturePlan | None:
    """As the recording was asked to; the command for each snapshot was for it alone."""
    if run.capture is None:
        return None
    return CapturePlan(**{**msgspec.structs.asdict(run.capture), "conditions": tuple(run.capture.conditions)})


def _declared(recording: RunDirectory) -> tuple[str, ...]:
    """Return the data that the recording was told of."""
    named = (recording.environment() or {}).get("declared")
    paths = named if isinstance(named, list) else []
    return tuple(path for path in paths if isinstance(path, str) and "\0" not in path)


def _require_replayable(recording: RunDirectory) -> None:
    run = recording.run
    _require_own(recording.path)
    recording.require_finished()
    if recording.orphaned and entropy.being_written(recording.path / rundir.ENTROPY):
        raise RunInProgress(f"{recording.path}: its launcher is gone and its training still runs; wait for it to end")
    if run.kind == RUN:
        raise NotReplayable(f"{recording.path} was made by 'reprokit run', which records nothing; record it")
    if run.kind != RECORD:
        original = run.replay_of.path if run.replay_of else "its recording"
        raise NotReplayable(f"{recording.path} is itself a replay; replay what it replayed: {original}")
    if run.status == FAILED:
        raise NotReplayable(f"{recording.path}: its command never started; record it again")
    if not run.command or "\0" in "".join(run.command) or not os.path.isabs(run.working_directory):
        raise RunDamaged(f"{recording.path / rundir.RUN}: it holds no usable command; the run cannot be used")
    if not run.has_profile:
        raise NotReplayable(f"{recording.path} came in a bundle without its random profile; ask for one --with-entropy")
    entropy.check_seal(recording.path / rundir.ENTROPY, run.profile)


def _require_own(path: Path) -> None:
    """To replay is to execute what run.json says, so it must be the user's own, or made their own by a copy."""
    owner = os.stat(path).st_uid
    if owner != os.geteuid():
        raise NotReplayable(
            f"{path} belongs to user {owner}, and a replay executes its command as you; copy it first if you trust it"
        )


def _key(recording: RunDirectory) -> bytes:
    try:
        key = bytes.fromhex(recording.run.key)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise RunDamaged(f"{recording.path / rundir.RUN}: the key is not 32 bytes; the run cannot be used")
    return key


def _changes(recording: RunDirectory, command: tuple[str, ...], directory: Path) -> Iterable[str]:
    """Yield what is different now, as far as it can be known before the start."""
    run = recording.run
    if command != tuple(run.command):
        yield "the command: another one was given than was recorded"
    if run.reprokit != VERSION:
        yield f"reprokit: {run.reprokit} recorded, {VERSION} now"
    yield from _variable_changes(run)
    before = recording.environment()
    if before is not None:
        yield from _host_changes(before)
        yield from dict.fromkeys([*_file_changes(before, directory), *_data_changes(before, directory, run.started)])
        yield from _object_changes(before)


def _variable_changes(run: RunFile) -> Iterable[str]:
    """Variables of the recording are given again, so these are different in the shell only."""
    shell = environments.inherited()
    now = variables.kept(shell)
    given = variables.kept(variables.given_again(shell, run.variables))
    for name in sorted(now.keys() | given.keys()):
        if now.get(name) != given.get(name):
            yield f"{name}: {_or_unset(now.get(name))} in the shell, {_or_unset(given.get(name))} as recorded is used"


def _or_unset(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _host_changes(before: dict[str, Any]) -> Iterable[str]:
    system, cpu = host.system_facts(), host.cpu_facts()
    for name in ("kernel", "libc", "machine"):
        yield from _difference(name, _within(before, "system", name), system[name])
    for name, words in (("model", "processor"), ("usable", "usable processors")):
        yield from _difference(words, _within(before, "cpu", name), cpu[name])
    if before.get("cpu") and _within(before, "cpu", "flags") != cpu["flags"]:
        yield "processor: its instruction sets differ, and libraries may choose other code"


def _file_changes(before: dict[str, Any], directory: Path) -> Iterable[str]:
    files, code = before.get("files"), before.get("code")
    named = list(files.items())[: host.MAX_FILES] if isinstance(files, dict) else []
    named.append((_within(before, "program", "path"), _within(before, "program", "digest")))
    others = list(code.items())[: host.MAX_CODE] if isinstance(code, dict) else []  # the run may have made them itself
    for path, digest in (*named, *others):
        if not isinstance(path, str) or not digest:
            continue
        now = host.file_digest(directory / path, opener=rundir.open_following)
        if now is not None and now != digest:
            yield f"{path}: its contents differ"
        elif now is None and (path, digest) in named:
            yield f"{path}: it is not there any more"


def _data_changes(before: dict[str, Any], directory: Path, started: str) -> Iterable[str]:
    if before.get("data"):
        from reprokit.launch import data

        yield from data.changes(before["data"], directory, since=timestamp(started) or 0.0)


def _object_changes(before: dict[str, Any]) -> Iterable[str]:
    read = before.get("data")
    if isinstance(read, list) and any(isinstance(entry, dict) and "://" in str(entry.get("path")) for entry in read):
        from reprokit.launch import objects

        yield from objects.changes(before)


def _versions(recording: RunDirectory) -> dict[str, str]:
    from reprokit.launch import objects

    return objects.versions(recording.environment() or {})


def later_changes(before: dict[str, Any], now: host.EnvironmentFile) -> Iterable[str]:
    """Yield what is known only when the run has been: the interpreter, the frameworks, the commit."""
    if now.python is not None:
        yield from _difference("Python", _within(before, "python", "python"), now.python["python"])
        yield from _difference("Python's path", _within(before, "python", "executable"), now.python["executable"])
    recorded = before.get("frameworks")
    for name, version in sorted(recorded.items()) if isinstance(recorded, dict) else ():
        yield from _difference(str(name), version, now.frameworks.get(name, "not imported"))
    yield from _difference("git commit", _within(before, "git", "commit"), (now.git or {}).get("commit"))
    yield from _difference("git changes", _within(before, "git", "changes"), (now.git or {}).get("changes"))
    yield from _difference("GPUs", before.get("gpus"), now.gpus)


def _within(facts: dict[str, Any], part: str, name: str) -> Any:
    inner = facts.get(part)
    return inner.get(name) if isinstance(inner, dict) else None


def _difference(name: str, before: Any, now: Any) -> Iterable[str]:
    if before is not None and before != now:
        yield f"{name}: {_short(before)} recorded, {_short(now)} now"


def _short(value: Any) -> str:
    return "unknown" if value is None else printable(str(value), LONGEST)
