"""Applies a run's patches as far as that is done before the start, and says at its end what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from reprokit.launch import agent_lines, packages
from reprokit.launch import command as commands
from reprokit.launch import environment as environments
from reprokit.launch.command import Command
from reprokit.launch.packages import directories
from reprokit.model.run import PatchApplied
from reprokit.patches import Chosen, is_absent, misfit, parse, select

APPLIED, NOT_APPLIED, REFUSED = "applied", "not-applied", "refused"
MAX_WHY = 500  # characters


class PreparedPatches(msgspec.Struct, frozen=True):
    """What a run's patches come to before its start."""

    variables: dict[str, str]  # the command's, with those of the patches
    states: list[PatchApplied]
    for_agent: list[dict[str, str]]  # what plan.json says


def wanted(words: Iterable[str], command: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Return the texts for Plan.patches that --patch asks for; auto is worked out for this command."""
    own = environments.inherited()

    def present() -> Mapping[str, str] | None:
        return installed(commands.resolve(command, own.get("PATH"), directory), own, directory)

    return tuple(chosen.text for chosen in select(words, present))


def installed(command: Command, own: Mapping[str, str], directory: Path) -> dict[str, str] | None:
    """The distributions of the command's Python and their versions; None where nobody can tell before it runs."""
    places = directories(command, own, directory)
    return None if places is None else {found.name: found.version for found in packages.installed(places)}


def prepare(texts: Iterable[str], command: Command, own: Mapping[str, str], directory: Path) -> PreparedPatches:
    """Set what is set before the start. A patch is applied whole or not at all."""
    present = installed(command, own, directory)
    variables, states, for_agent = dict(own), [], []
    for chosen in parse(texts):
        state = _before(chosen, own, variables, present)
        states.append(state)
        if state.state == APPLIED:
            variables.update(state.variables)
            for_agent += _for_agent(chosen)
    return PreparedPatches(variables, states, for_agent)


def _before(
    chosen: Chosen, own: Mapping[str, str], now: Mapping[str, str], present: Mapping[str, str] | None
) -> PatchApplied:
    """Return what becomes of a patch before the start, beside those that have set their variables by now."""
    patch, value = chosen.patch, chosen.value
    changes, clash = _variables(chosen, own, now)
    if why := misfit(patch, present):
        return PatchApplied(id=patch.id, value=value, state=NOT_APPLIED, why=why)
    if clash:
        return PatchApplied(id=patch.id, value=value, state=REFUSED, why=clash)
    return PatchApplied(id=patch.id, value=value, warnings=_warnings(chosen, present), variables=changes)


def _variables(chosen: Chosen, own: Mapping[str, str], now: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return what a patch sets, and which of the user's own settings stand against it."""
    changes = {name: value.replace("{value}", chosen.value) for name, value in chosen.patch.variables.items()}
    clashes = [f"{name}={own[name]}" for name, value in changes.items() if own.get(name, value) != value]
    for name, flag in chosen.patch.flags.items():
        other = _same_flag(own.get(name, ""), flag)
        if other and other != flag:
            clashes.append(f"{name}={other}")
        elif not other:
            changes[name] = f"{now.get(name, '')} {flag}".strip()
    return changes, f"the environment has {', '.join(clashes)}; unset it, or do without the patch" if clashes else ""


def _same_flag(text: str, flag: str) -> str:
    """Return the user's own setting of a flag."""
    name = flag.partition("=")[0]
    return next((word for word in reversed(text.split()) if word.partition("=")[0] == name), "")


def _for_agent(chosen: Chosen) -> list[dict[str, str]]:
    """Return what the agent must know; nothing of a patch for any program that is all variables."""
    patch = chosen.patch
    known = {"id": patch.id, "value": chosen.value, "framework": patch.framework, "versions": patch.versions}
    return [known] if patch.agent or patch.framework else []


def _warnings(chosen: Chosen, present: Mapping[str, str] | None) -> list[str]:
    """Return what must be said before the start."""
    patch = chosen.patch
    absent = f"{patch.framework} is not to be seen in the command's Python; it is applied if it comes all the same"
    return [*([patch.warning] if patch.warning else []), *([absent] if is_absent(patch, present) else [])]


def words_before(states: Iterable[PatchApplied]) -> Iterable[str]:
    """Yield what the user must know before the start."""
    for state in states:
        if state.state != APPLIED:
            yield f"patch {state.text} is {_in_words(state.state)}: {state.why}"
        for warning in state.warnings:
            yield f"patch {state.text}: {warning}"


def at_end(states: list[PatchApplied], told: agent_lines.AgentFacts) -> list[PatchApplied]:
    """Return the states as the processes of the run have them."""
    return [_with_lines(state, told) if state.state == APPLIED else state for state in states]


def _with_lines(state: PatchApplied, told: agent_lines.AgentFacts) -> PatchApplied:
    """One patch: refused where any process refused it, applied where any applied it."""
    patch = parse([state.text])[0].patch
    lines = [line for line in told.patches if (line.id, line.value) == (state.id, state.value)]
    if not lines:
        is_done = not (patch.framework or (patch.agent and not state.variables))
        return state if is_done else _absent(state, patch.framework, told)
    states = {line.state for line in lines}
    became = next((one for one in (REFUSED, APPLIED, NOT_APPLIED) if one in states), NOT_APPLIED)
    why = "; ".join(dict.fromkeys(line.why for line in lines if line.why and line.state == became))
    processes = len({line.process for line in lines if line.state == APPLIED})
    return msgspec.structs.replace(state, state=became, why=why[:MAX_WHY], processes=processes)


def _absent(state: PatchApplied, framework: str, told: agent_lines.AgentFacts) -> PatchApplied:
    """No process had anything to apply it to."""
    if not told.loaded:
        why = "no Python process of the run loaded the agent"
    else:
        why = f"no process imported {framework}" if framework else "no process imported what it is for"
    return msgspec.structs.replace(state, state=NOT_APPLIED, why=why)


def words_after(before: Iterable[PatchApplied], after: Iterable[PatchApplied]) -> Iterable[str]:
    """Yield what turned out otherwise than it was said before the start."""
    for old, new in zip(before, after, strict=True):
        if old.state != new.state:
            yield f"patch {new.text} was {_in_words(new.state)}: {new.why}"


def _in_words(state: str) -> str:
    return state.replace("-", " ")
