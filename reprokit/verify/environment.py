"""Compares where the runs took place: shown in words, each fact marked whether it can change results.

Differences here explain other differences; they decide nothing by themselves. Two runs whose metrics,
weights and outputs are the same bits on two machines are identical, and the table says on what.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from reprokit.difference import Difference, Verdict, group, information, missing
from reprokit.rundir import RunDirectory, RunFile
from reprokit.verify import computing, listings
from reprokit.verify.match import Matched
from reprokit.verify.normalise import HOSTS, PROCESS_IDS, RUN_IDS, Normalisations
from reprokit.verify.scan import Scan, natural

MAX_FACTS = 20_000  # of environment.json; packages come in hundreds


class Rule(NamedTuple):
    """What it means when a fact of this name differs."""

    pattern: str
    can_change_results: bool
    meaning: str


_GPU = "another GPU or driver may compute in another order"
_THREADS = "sums are split over another number of threads"
_PROCESSOR = "libraries choose their code by the processor"
_ADDRESSES = "code that depends on addresses may take another turn"
_LISTED = "only through its libraries, which are listed by themselves"

# The first pattern that fits counts; names are paths of keys joined by dots, in lower case.
RULES = (
    Rule("variables.*_visible_devices", True, _GPU),
    Rule("variables.pythonhashseed", True, "sets and dictionaries of texts are walked in another order"),
    Rule("variables.*num_threads", True, _THREADS),
    Rule("variables.*", True, "it is one of the variables that frameworks and interpreters obey"),
    Rule("frameworks.*", True, "another version of a framework may compute otherwise"),
    Rule("packages.*", True, "another version of a package may compute otherwise"),
    Rule("python*", True, "another interpreter may draw random numbers and walk sets otherwise"),
    Rule("program.path", False, "where a program lies is in no computation"),
    Rule("program.*", True, "another program was run"),
    Rule("files.*", True, "the script or a file named in the command has other bytes"),
    Rule("git.*", True, "the source was in another state"),
    Rule("gpu*", True, _GPU),
    Rule("cuda*", True, _GPU),
    Rule("compute.*threads", True, _THREADS),
    Rule("compute.process.usable", True, _THREADS),
    Rule("compute.process.processors", True, _THREADS),
    Rule("compute.*.workers", True, "another number of workers draws random numbers in other processes"),
    Rule("compute.*", True, _PROCESSOR),
    Rule("host", False, "the name of the machine is in no computation"),
    Rule("memory", False, "the amount of memory is in no computation"),
    Rule("cpu.count", True, _THREADS),
    Rule("cpu.usable", True, _THREADS),
    Rule("cpu.*", True, _PROCESSOR),
    Rule("system.machine", True, _PROCESSOR),
    Rule("system.libc", True, "another C library rounds mathematical functions otherwise"),
    Rule("system.kernel", False, "the kernel takes no part in arithmetic"),
    Rule("system.distribution", False, _LISTED),
    Rule("system.os", True, "another operating system has other libraries"),
    Rule("limits.stack", True, _ADDRESSES),
    Rule("limits.*", False, "a run that comes to its end was not limited"),
    Rule("address randomisation", True, _ADDRESSES),
    Rule("environment size", True, _ADDRESSES),
    Rule("shim", True, "without the shim entropy is neither recorded nor replayed"),
    Rule("agent", True, "without the agent no metrics are recorded"),
    Rule("reprokit", False, "the version of reprokit takes no part in the training"),
)
_OTHERWISE = Rule("*", True, "nothing is known about this fact")

# What is compared elsewhere: the agent tells it for every process.
_ELSEWHERE = ("format", "python.*", "python", "frameworks.*")


def compare(runs: tuple[RunDirectory, RunDirectory], matched: Matched, normalisations: Normalisations) -> Difference:
    """Host facts, versions, variables, and how reprokit itself was loaded."""
    left, right = runs[0].run, runs[1].run
    _ignore(left, right, matched, normalisations)
    children = [*_launched(left, right), *_host(runs), *_frameworks(matched)]
    children += [fact(*values) for values in computing.facts(matched)]
    children += [*listings.compare(matched), *_replay_changes(left, right)]
    return group("environment", tuple(children))


def rule_for(name: str) -> Rule:
    """What it means when this fact differs."""
    return next((rule for rule in RULES if fnmatchcase(name.lower(), rule.pattern)), _OTHERWISE)


def fact(name: str, left: str, right: str) -> Difference:
    """A leaf for one fact of the environment."""
    if left == right:
        return Difference(name, Verdict.IDENTICAL if left else Verdict.NOT_RECORDED, left, right)
    rule = rule_for(name)
    meaning = f"{'can' if rule.can_change_results else 'cannot'} change results: {rule.meaning}"
    return information(name, left or "(none)", right or "(none)", meaning, can_change_results=rule.can_change_results)


def _launched(left: RunFile, right: RunFile) -> Iterator[Difference]:
    """What run.json says of the surroundings."""
    names = sorted({*left.variables, *right.variables})
    for name in names:
        yield fact(f"variables.{name}", left.variables.get(name, ""), right.variables.get(name, ""))
    yield fact("address randomisation", left.address_randomization, right.address_randomization)
    yield fact("environment size", _number(left.environment_size), _number(right.environment_size))
    yield fact("reprokit", left.reprokit, right.reprokit)
    yield fact("shim", left.shim, right.shim)
    yield fact("agent", left.agent, right.agent)


def _number(value: int) -> str:
    return str(value) if value else ""


def _host(runs: tuple[RunDirectory, RunDirectory]) -> Iterator[Difference]:
    """What environment.json says, fact by fact."""
    left, right = runs[0].environment(), runs[1].environment()
    # One side has none only where its launcher died at once, or somebody took the file away.
    if left is None and right is None:
        yield Difference("host facts", Verdict.NOT_RECORDED)
        return
    if left is None or right is None:
        yield missing("host facts", "" if left is None else "recorded", "" if right is None else "recorded")
        return
    facts = dict(flat(left)), dict(flat(right))
    for name in sorted({*facts[0], *facts[1]}, key=natural)[:MAX_FACTS]:
        if not any(fnmatchcase(name.lower(), pattern) for pattern in _ELSEWHERE):
            yield fact(name, facts[0].get(name, ""), facts[1].get(name, ""))


def flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The facts of a nested object by the path of their keys; described files by their path."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from flat(inner, f"{prefix}{key}.")
        elif isinstance(inner, list) and all(isinstance(one, dict) and "path" in one for one in inner):
            for one in inner:
                facts = {name: fact for name, fact in one.items() if name != "path"}
                yield from flat(facts, f"{prefix}{key}.{one['path']}.")
        elif isinstance(inner, list):
            yield f"{prefix}{key}", ", ".join(str(one) for one in inner)
        else:
            yield f"{prefix}{key}", "" if inner is None else str(inner)


def _frameworks(matched: Matched) -> Iterator[Difference]:
    """The versions that the training imported, and the Python that it ran under."""
    left, right = matched.left, matched.right
    pythons = _pythons(matched, 0), _pythons(matched, 1)
    yield fact("python of the training", ", ".join(pythons[0]), ", ".join(pythons[1]))
    for name in sorted({*left.frameworks, *right.frameworks}):
        versions = left.frameworks.get(name, set()), right.frameworks.get(name, set())
        yield fact(f"frameworks.{name}", ", ".join(sorted(versions[0])), ", ".join(sorted(versions[1])))


def _pythons(matched: Matched, side: int) -> list[str]:
    scan = (matched.left, matched.right)[side]
    agents = [process.agent for process in scan.processes.values() if process.agent is not None]
    return sorted({f"{agent.implementation} {agent.python}" for agent in agents})


def _replay_changes(left: RunFile, right: RunFile) -> Iterator[Difference]:
    """What a replay itself found to be different from its recording."""
    for run in (left, right):
        for change in run.changed:
            yield information("noticed by the replay", "", "", change)


def _ignore(left: RunFile, right: RunFile, matched: Matched, normalisations: Normalisations) -> None:
    normalisations.ignore(RUN_IDS, left.run_id, right.run_id)
    normalisations.ignore(HOSTS, left.host, right.host)
    normalisations.ignore(PROCESS_IDS, _pids(matched.left), _pids(matched.right))


def _pids(scan: Scan) -> list[int]:
    return [process.agent.pid for process in scan.processes.values() if process.agent is not None]
