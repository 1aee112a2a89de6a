"""Reads a recording and creates the plan of its replay, with the known differences from the recording."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reprokit import entropy
from reprokit.core.errors import LaunchError, NotReplayable, RunDamaged, RunInProgress, WorkingDirectoryMissing
from reprokit.core.printable import listed, printable
from reprokit.core.version import VERSION
from reprokit.model.environment import EnvironmentFile
from reprokit.model.plan import KEEP_OUTPUTS, RECORD, REPLAY, RUN, CapturePlan, Plan, ReplayStart, RulesPlan
from reprokit.model.run import AUTOMATIC, FAILED, ReplayOf, RunFile, StartFiles, timestamp
from reprokit.model.states import ON, WITHOUT_SUPERVISOR, Switch, off
from reprokit.run import compute_pins, host
from reprokit.run import environment as environments
from reprokit.run.command import resolve
from reprokit.run.file_digests import MAX_CODE, file_digest
from reprokit.run_files import rundir, variables
from reprokit.run_files.rundir import TRAIL, RunDirectory

if TYPE_CHECKING:
    from reprokit.model.question import Question

MAX_STRIDES = 10_000  # of optimizers; further ones have each step in the replay
MAX_NAMED = 5  # packages in one line
LONGEST = 200  # characters of a fact, which may come from an untrusted file


def replay_plan(
    recording: RunDirectory,
    output: Path | None,
    command: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
    policy: str = "derive",
    supervisor: bool = True,
    trail: Switch = ON,
    trail_every: int | None = None,
    keep_outputs: int = KEEP_OUTPUTS,
    capture: CapturePlan | None = None,
    force: bool = False,
    pin_versions: bool = False,
    question: Question | None = None,
    rules: RulesPlan | None = None,
    start: ReplayStart = ReplayStart.FOUND,
) -> Plan:
    """Return the plan that replays the recorded command with its recorded entropy."""
    require_replayable(recording)
    run = recording.run = _in_current_directory(recording.run)
    recording_path = Path(os.path.realpath(recording.path))
    if output is not None and recording_path in (output_path := Path(os.path.realpath(output)), *output_path.parents):
        raise NotReplayable(f"{output} is the recording itself, or inside of it; choose another directory with -o")
    directory = Path(run.working_directory)
    if not directory.is_dir():
        raise WorkingDirectoryMissing(
            f"{directory}, where the command was recorded, is not there; make it available again"
        )
    chosen_command = command or tuple(run.command)
    pins = compute_pins.pins(recording)
    # A question's replay is itself asked about steps that its recording may have passed over.
    every = trail_every or (run.trail_every if question is None else 1)
    left_nothing = start is ReplayStart.FOUND and _left_nothing(recording)
    return Plan(
        mode=REPLAY,
        command=chosen_command,
        working_directory=directory,
        output=output,
        overwrite=overwrite,
        policy=policy,
        key=_key(recording),
        record_crypto=run.include_crypto,
        keyed=run.keyed,
        calendar=run.calendar,
        clock=run.clock,
        recorded_at=_recorded_at(recording),
        hide_rdrand=run.hide_rdrand,
        supervisor=supervisor and run.supervisor != WITHOUT_SUPERVISOR,
        trail=_trail(recording, trail),
        trail_every=every,
        trail_strides=_strides(recording) if every == AUTOMATIC else {},
        batch_digests=run.batch_digests,
        orders=_keeps_orders(recording),
        console=recording.keeps_console,
        keep_outputs=keep_outputs,
        data=_declared_data(recording),
        profile=recording_path / rundir.ENTROPY,
        replay_of=ReplayOf(
            path=str(recording_path), run_id=run.run_id, profile_digest=run.profile.digest if run.profile else ""
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
        start=ReplayStart.HERE if left_nothing else start,
        started_from=StartFiles() if left_nothing else None,
        question=question,
        rules=rules,
        changed=(*_changes(recording, chosen_command, directory), *pins.changes),
    )


def _recorded_at(recording: RunDirectory) -> int:
    """Return when the recorded training began by its own calendar, in nanoseconds since 1970; 0 if unknown."""
    continued = recording.run.continues
    return entropy.started_at(recording.path / rundir.ENTROPY) if continued is None else continued.recorded_at


def _strides(recording: RunDirectory) -> dict[str, dict[str, int]]:
    """Return the strides that a recording measured, by process and optimizer; where it has none, it has each step."""
    strides: dict[str, dict[str, int]] = {}
    if not recording.has(TRAIL):
        return strides
    from reprokit.run_files import trails  # imported by replays that need it: slow to load

    chosen = (
        (trail.process, series)
        for trail in trails.read(recording)
        for series in trail.series
        if series.every > 1 and len(series.name) <= LONGEST
    )
    for process, series in islice(chosen, MAX_STRIDES):
        strides.setdefault(process, {})[series.name] = series.every
    return strides


def _left_nothing(recording: RunDirectory) -> bool:
    """Return whether a recording neither wrote nor changed any file."""
    outputs = recording.outputs()
    return outputs is not None and not any((outputs.files, outputs.links, outputs.found, outputs.directories))


def _keeps_orders(recording: RunDirectory) -> bool:
    """Return whether the recording's agents watched orders of completion: a replay must allocate memory alike."""
    return not (
        recording.has(rundir.AGENT_PLAN) and recording.decode(rundir.AGENT_PLAN, dict[str, Any]).get("no_orders")
    )


def _in_current_directory(run: RunFile) -> RunFile:
    """Return the run; one bundled without its paths gets the current directory, where its code must be."""
    if run.bundled is None or run.working_directory != rundir.BUNDLED_DIRECTORY:
        return run
    current, placeholder = os.getcwd(), re.compile(re.escape(rundir.BUNDLED_DIRECTORY) + r"(?![A-Za-z0-9._-])")

    def with_current(text: str) -> str:
        return placeholder.sub(lambda _: current, text)

    names = {name: with_current(value) for name, value in run.variables.items()}
    return msgspec.structs.replace(
        run, working_directory=current, command=list(map(with_current, run.command)), variables=names
    )


def _trail(recording: RunDirectory, requested: Switch) -> Switch:
    """Return the trail setting of the recording, even if no step was recorded: memory is then used as it was."""
    recorded = recording.run.trail
    if recorded is not None and recorded.is_on:
        return recorded if requested == ON else requested
    is_written = recording.has(rundir.TRAIL) or recording.run.trails is not None
    return requested if is_written else off("the recording has none", "not-in-recording")


def _capture(run: RunFile) -> CapturePlan | None:
    """Return the recording's capture options; its command for each snapshot is not repeated."""
    if run.capture is None:
        return None
    return CapturePlan(**{**msgspec.structs.asdict(run.capture), "conditions": tuple(run.capture.conditions)})


def _declared_data(recording: RunDirectory) -> tuple[str, ...]:
    """Return the paths that the recording was given by --data."""
    declared = (recording.environment() or {}).get("declared")
    paths = declared if isinstance(declared, list) else []
    return tuple(path for path in paths if isinstance(path, str) and "\0" not in path)


def require_replayable(recording: RunDirectory) -> None:
    """Raise what says why this run cannot be replayed, and what can be done."""
    run = recording.run
    _require_owner(recording.path)
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


def _require_owner(path: Path) -> None:
    """Refuse another user's run: a replay executes what run.json says. A copy belongs to whoever made it."""
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
    """Yield the differences from the recording that are known before the start."""
    run = recording.run
    if command != tuple(run.command):
        yield "the command: another one was given than was recorded"
    if run.reprokit != VERSION:
        yield f"reprokit: {run.reprokit} recorded, {VERSION} now"
    yield from _variable_changes(run)
    recorded_environment = recording.environment()
    if recorded_environment is not None:
        yield from _host_changes(recorded_environment)
        if _nested_fact(recorded_environment, "python", "executable"):
            with suppress(LaunchError):  # a command that cannot be started has an error of its own
                yield from _python_changes(recorded_environment, run, command, directory)
        yield from dict.fromkeys(
            [
                *_file_changes(recorded_environment, directory),
                *_data_changes(recorded_environment, directory, run.started),
            ]
        )
        yield from _object_changes(recorded_environment)


def changed_code(recording: RunDirectory) -> list[str]:
    """Return which code of the user's is not as recorded, without files that the run wrote."""
    outputs, code = recording.outputs(), (recording.environment() or {}).get("code")
    written = {file.path for file in outputs.files} if outputs is not None else set()
    kept = {path: digest for path, digest in code.items() if path not in written} if isinstance(code, dict) else {}
    return list(_file_changes({"code": kept}, Path(recording.run.working_directory)))


def changed_script(recording: RunDirectory) -> list[str]:
    """Return which files of the command or code of the user's are not as recorded, without those that the run wrote."""
    from reprokit.run_files import names

    directory, files = Path(recording.run.working_directory), (recording.environment() or {}).get("files")
    written = set(names.written_at(recording.path))
    named = files.items() if isinstance(files, dict) else ()
    kept = {path: digest for path, digest in named if os.path.realpath(directory / path) not in written}
    return [*_file_changes({"files": kept}, directory), *changed_code(recording)]


def _variable_changes(run: RunFile) -> Iterable[str]:
    """Yield variables that differ in the shell only: the replay uses their recorded values."""
    shell = environments.inherited()
    now = variables.kept(shell)
    given = variables.kept(variables.given_again(shell, run.variables))
    for name in sorted(now.keys() | given.keys()):
        if now.get(name) != given.get(name):
            yield f"{name}: {_or_unset(now.get(name))} in the shell, {_or_unset(given.get(name))} as recorded is used"


def _or_unset(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _host_changes(recorded: dict[str, Any]) -> Iterable[str]:
    system, cpu = host.system_facts(), host.cpu_facts()
    for name in ("kernel", "libc", "machine"):
        yield from _difference(name, _nested_fact(recorded, "system", name), system[name])
    for name, label in (("model", "processor"), ("usable", "usable processors")):
        yield from _difference(label, _nested_fact(recorded, "cpu", name), cpu[name])
    if recorded.get("cpu") and _nested_fact(recorded, "cpu", "flags") != cpu["flags"]:
        yield "processor: its instruction sets differ, and libraries may choose other code"


def _python_changes(recorded: dict[str, Any], run: RunFile, command: tuple[str, ...], directory: Path) -> Iterable[str]:
    """Yield how the command's Python and its packages differ from the recorded ones, without running it."""
    from reprokit.run import packages  # imported by replays of Python that need it

    own = environments.without_own(variables.given_again(environments.inherited(), run.variables))
    resolved = resolve(command, own.get("PATH"), directory)
    search_path = packages.directories(resolved, own, directory)
    python = packages.interpreter(resolved, own.get("PATH"), directory)
    if search_path is None or python is None:
        return
    known = str(_nested_fact(recorded, "python", "executable")).replace("\0", "")
    if _directory_of(known) != _directory_of(directory / python):
        yield from _difference("Python's path", known, str(directory / python))
    versions, imported = recorded.get("packages"), recorded.get("imported")
    installed = {package.name: package.version for package in packages.installed(search_path)}
    others = [
        f"{name} {version} ({installed.get(name, 'missing')} now)"
        for name, version in (versions.items() if isinstance(versions, dict) else ())
        if installed.get(name) != version and (not isinstance(imported, list) or name in imported)
    ]
    if others:
        named = printable(listed(others, MAX_NAMED), LONGEST)
        yield f"packages recorded: {named}; install these, or replay with the recorded Python"


def _directory_of(python: str | Path) -> str:
    """Return the directory of an interpreter by its one name, which its environment has below it."""
    return os.path.realpath(os.path.dirname(python))


def _file_changes(recorded: dict[str, Any], directory: Path) -> Iterable[str]:
    files, code = recorded.get("files"), recorded.get("code")
    command_files = list(files.items())[: host.MAX_FILES] if isinstance(files, dict) else []
    command_files.append((_nested_fact(recorded, "program", "path"), _nested_fact(recorded, "program", "digest")))
    code_files = (
        list(code.items())[:MAX_CODE] if isinstance(code, dict) else []
    )  # may be missing, as the run may have made them itself
    for path, digest in (*command_files, *code_files):
        if not isinstance(path, str) or not digest:
            continue
        current_digest = file_digest(directory / path, opener=rundir.open_following)
        if current_digest is not None and current_digest != digest:
            yield f"{path}: its contents differ"
        elif current_digest is None and (path, digest) in command_files:
            yield f"{path}: it is not there any more"


def _data_changes(recorded: dict[str, Any], directory: Path, started: str) -> Iterable[str]:
    if recorded.get("data"):
        from reprokit.run import data

        yield from data.changes(recorded["data"], directory, since=timestamp(started) or 0.0)


def _object_changes(recorded: dict[str, Any]) -> Iterable[str]:
    entries = recorded.get("data")
    if isinstance(entries, list) and any(
        isinstance(entry, dict) and "://" in str(entry.get("path")) for entry in entries
    ):
        from reprokit.run import objects

        yield from objects.changes(recorded)


def _versions(recording: RunDirectory) -> dict[str, str]:
    from reprokit.run import objects

    return objects.versions(recording.environment() or {})


def later_changes(recorded_environment: dict[str, Any], current: EnvironmentFile) -> Iterable[str]:
    """Yield the differences known only after the run: the interpreter, the frameworks, the commit."""
    if current.python is not None:
        yield from _difference(
            "Python", _nested_fact(recorded_environment, "python", "python"), current.python["python"]
        )
        yield from _difference(
            "Python's path", _nested_fact(recorded_environment, "python", "executable"), current.python["executable"]
        )
    frameworks = recorded_environment.get("frameworks")
    for name, version in sorted(frameworks.items()) if isinstance(frameworks, dict) else ():
        yield from _difference(str(name), version, current.frameworks.get(name, "not imported"))
    yield from _difference(
        "git commit", _nested_fact(recorded_environment, "git", "commit"), (current.git or {}).get("commit")
    )
    yield from _difference(
        "git changes", _nested_fact(recorded_environment, "git", "changes"), (current.git or {}).get("changes")
    )
    yield from _difference("GPUs", recorded_environment.get("gpus"), current.gpus)


def _nested_fact(facts: dict[str, Any], part: str, name: str) -> Any:
    section = facts.get(part)
    return section.get(name) if isinstance(section, dict) else None


def _difference(name: str, recorded: Any, current: Any) -> Iterable[str]:
    if recorded is not None and recorded != current:
        yield f"{name}: {_shown_value(recorded)} recorded, {_shown_value(current)} now"


def _shown_value(value: Any) -> str:
    return "unknown" if value is None else printable(str(value), LONGEST)
