"""Applies the part of a run's patches that precedes its start, and reports at its end what became of each patch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from reprokit.model.run import PatchApplied
from reprokit.patches import Chosen, is_absent, misfit, parse, select
from reprokit.run import agent_lines, packages
from reprokit.run import command as commands
from reprokit.run import environment as environments
from reprokit.run.command import Command
from reprokit.run.packages import directories

APPLIED, NOT_APPLIED, REFUSED = "applied", "not-applied", "refused"
MAX_WHY = 500  # characters


class PreparedPatches(msgspec.Struct, frozen=True):
    """A run's patches as they are before its start."""

    variables: dict[str, str]  # the command's variables, with those that patches set
    states: list[PatchApplied]
    for_agent: list[dict[str, str]]  # their entries in plan.json


def wanted(names: Iterable[str], command: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Return the texts for Plan.patches that --patch requests; auto is resolved for this command."""
    user_variables = environments.inherited()

    def installed_versions() -> Mapping[str, str] | None:
        return installed(commands.resolve(command, user_variables.get("PATH"), directory), user_variables, directory)

    return tuple(chosen.text for chosen in select(names, installed_versions))


def installed(command: Command, user_variables: Mapping[str, str], directory: Path) -> dict[str, str] | None:
    """Return the versions of the packages of the command's Python; None if it is no Python."""
    search_path = directories(command, user_variables, directory)
    return (
        None if search_path is None else {package.name: package.version for package in packages.installed(search_path)}
    )


def prepare(
    texts: Iterable[str], command: Command, user_variables: Mapping[str, str], directory: Path
) -> PreparedPatches:
    """Set the variables of patches before the start. A patch is applied as a whole or not at all."""
    installed_versions = installed(command, user_variables, directory)
    variables, states, for_agent = dict(user_variables), [], []
    for chosen in parse(texts):
        state = _initial_state(chosen, user_variables, variables, installed_versions)
        states.append(state)
        if state.state == APPLIED:
            variables.update(state.variables)
            for_agent += _agent_patches(chosen)
    return PreparedPatches(variables, states, for_agent)


def _initial_state(
    chosen: Chosen,
    user_variables: Mapping[str, str],
    variables: Mapping[str, str],
    installed_versions: Mapping[str, str] | None,
) -> PatchApplied:
    """Return a patch's state before the start, given the variables set by the patches before it."""
    patch, value = chosen.patch, chosen.value
    changes, clash = _patch_variables(chosen, user_variables, variables)
    if reason := misfit(patch, installed_versions):
        return PatchApplied(id=patch.id, value=value, state=NOT_APPLIED, why=reason)
    if clash:
        return PatchApplied(id=patch.id, value=value, state=REFUSED, why=clash)
    return PatchApplied(id=patch.id, value=value, warnings=_warnings(chosen, installed_versions), variables=changes)


def _patch_variables(
    chosen: Chosen, user_variables: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Return the variables that a patch sets, and why the user's own settings conflict with them."""
    changes = {name: value.replace("{value}", chosen.value) for name, value in chosen.patch.variables.items()}
    clashes = [
        f"{name}={user_variables[name]}" for name, value in changes.items() if user_variables.get(name, value) != value
    ]
    for name, flag in chosen.patch.flags.items():
        users_flag = _users_flag(user_variables.get(name, ""), flag)
        if users_flag and users_flag != flag:
            clashes.append(f"{name}={users_flag}")
        elif not users_flag:
            changes[name] = f"{variables.get(name, '')} {flag}".strip()
    return changes, f"the environment has {', '.join(clashes)}; unset it, or do without the patch" if clashes else ""


def _users_flag(text: str, flag: str) -> str:
    """Return the user's own setting of this flag; empty if there is none."""
    name = flag.partition("=")[0]
    return next((word for word in reversed(text.split()) if word.partition("=")[0] == name), "")


def _agent_patches(chosen: Chosen) -> list[dict[str, str]]:
    """Return what the agent must know of a patch; nothing if it only sets variables for any program."""
    patch = chosen.patch
    entry = {"id": patch.id, "value": chosen.value, "framework": patch.framework, "versions": patch.versions}
    return [entry] if patch.agent or patch.framework else []


def _warnings(chosen: Chosen, installed_versions: Mapping[str, str] | None) -> list[str]:
    """Return warnings about a patch before the start."""
    patch = chosen.patch
    absent = f"{patch.framework} is not to be seen in the command's Python; it is applied if it comes all the same"
    return [*([patch.warning] if patch.warning else []), *([absent] if is_absent(patch, installed_versions) else [])]


def words_before(states: Iterable[PatchApplied]) -> Iterable[str]:
    """Yield warnings for the user before the start."""
    for state in states:
        if state.state != APPLIED:
            yield f"patch {state.text} is {_in_words(state.state)}: {state.why}"
        for warning in state.warnings:
            yield f"patch {state.text}: {warning}"


def at_end(states: list[PatchApplied], agent_facts: agent_lines.AgentFacts) -> list[PatchApplied]:
    """Return the final states of patches, as the processes of the run reported them."""
    return [_final_state(state, agent_facts) if state.state == APPLIED else state for state in states]


def _final_state(state: PatchApplied, agent_facts: agent_lines.AgentFacts) -> PatchApplied:
    """Return a patch's final state: refused if any process refused it, else applied if any applied it."""
    patch = parse([state.text])[0].patch
    lines = [line for line in agent_facts.patches if (line.id, line.value) == (state.id, state.value)]
    if not lines:
        is_applied = not (patch.framework or (patch.agent and not state.variables))
        return state if is_applied else _not_applied(state, patch.framework, agent_facts)
    states = {line.state for line in lines}
    final = next((candidate for candidate in (REFUSED, APPLIED, NOT_APPLIED) if candidate in states), NOT_APPLIED)
    why = "; ".join(dict.fromkeys(line.why for line in lines if line.why and line.state == final))
    processes = len({line.process for line in lines if line.state == APPLIED})
    return msgspec.structs.replace(state, state=final, why=why[:MAX_WHY], processes=processes)


def _not_applied(state: PatchApplied, framework: str, agent_facts: agent_lines.AgentFacts) -> PatchApplied:
    """Return the state of a patch that no process could apply."""
    if not agent_facts.loaded:
        why = "no Python process of the run loaded the agent"
    else:
        why = f"no process imported {framework}" if framework else "no process imported what it is for"
    return msgspec.structs.replace(state, state=NOT_APPLIED, why=why)


def words_after(before: Iterable[PatchApplied], after: Iterable[PatchApplied]) -> Iterable[str]:
    """Yield changes from the states reported before the start."""
    for old, new in zip(before, after, strict=True):
        if old.state != new.state:
            yield f"patch {new.text} was {_in_words(new.state)}: {new.why}"


def _in_words(state: str) -> str:
    return state.replace("-", " ")
