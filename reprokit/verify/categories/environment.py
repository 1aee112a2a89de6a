"""Compares the surroundings of two runs in words; each fact is marked whether it can change results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.difference import Difference, Verdict, group, information, lacking, missing
from reprokit.model.run import RunFile
from reprokit.model.states import Loading, Switch
from reprokit.verify.categories import data_reads, script_variables
from reprokit.verify.categories.match import Raw, RunPair, SeriesPair
from reprokit.verify.categories.processes import stopped_side
from reprokit.verify.read.normalization import HOSTS, PROCESS_IDS, RUN_IDS
from reprokit.verify.read.scan import MetricsScan, natural

MAX_FACTS = 20_000  # compared of environment.json; hundreds of packages are usual

RECORDING = "recording"  # a group of facts
Values = tuple[str, str, str]  # the fact's name, and what each run has
_OTHER_ORDER = "the same names in another order: what goes through them as they come takes another turn"
_OTHER_NAMES = "other names were listed"
_INCOMPLETE = "it was listed to the end in one run only, or as far as another name"
NONE = "(none)"  # shown for a fact that one side lacks
SHOWN = 5  # names in one sentence
Facts = dict[str, Any]


class FactRule(msgspec.Struct, frozen=True):
    """The meaning of a difference in the facts that match one of the patterns."""

    patterns: tuple[str, ...]  # of names, which are paths of keys joined by dots, in lower case
    group: str
    can_change_results: bool
    meaning: str


class FactRules(msgspec.Struct, frozen=True):
    """The content of environment_rules.json."""

    groups: tuple[str, ...]  # the likely causes first
    rules: tuple[FactRule, ...]  # the first one that matches counts; the last matches every fact


RULES = msgspec.json.decode(Path(__file__).with_name("environment_rules.json").read_bytes(), type=FactRules)

# Facts compared elsewhere: the agent reports them for every process, or they have leaves of their own.
_COMPARED_ELSEWHERE = (
    "format", "python", "python.python", "python.implementation", "frameworks.*", "packages.*", "imported", "data*",
    "code.*", "git.dirty", "git.untracked.*", "git.used.*",
)  # fmt: skip


def compare(runs: RunPair) -> Difference:
    """Compare host facts, versions, variables and reprokit itself; they explain differences and decide nothing."""
    left, right = runs.files
    runs.normalizations.ignore(RUN_IDS, left.run_id, right.run_id)
    runs.normalizations.ignore(HOSTS, left.host, right.host)
    runs.normalizations.ignore(PROCESS_IDS, _pids(runs.left), _pids(runs.right))
    facts = [*_launch_facts(left, right), *_host_facts(runs), *_frameworks(runs)]
    facts += starmap(fact, _compute_facts(runs))
    facts += [*script_variables.compare(runs), *_listings(runs)]
    changes = (change for run in runs.files for change in run.changed)
    facts += [information("noticed by the replay", "", "", change) for change in changes]
    differing = {leaf.name for leaf in facts if leaf.left != leaf.right}
    by_group: dict[str, list[Difference]] = {name: [] for name in RULES.groups}
    for leaf in facts:
        if not (_is_reported_elsewhere(leaf, differing) or _is_unknown(leaf, runs)):
            is_of_recording = leaf.name in ("host facts", "noticed by the replay")
            by_group[RECORDING if is_of_recording else rule_for(leaf.name).group].append(leaf)
    children = (group(name, tuple(leaves)) for name, leaves in by_group.items() if leaves)
    return group("environment", tuple(children))


def _is_reported_elsewhere(leaf: Difference, differing: set[str]) -> bool:
    """Return whether another differing leaf reports the same difference."""
    if leaf.name.startswith("code."):
        return f"files.{leaf.name.removeprefix('code.')}" in differing
    if leaf.name.startswith(f"{script_variables.NAME} "):
        return f"variables.{leaf.name.removeprefix(f'{script_variables.NAME} ')}" in differing
    if not leaf.name.startswith("compute.process.variables"):
        return False
    texts = set(leaf.left.split(", ")) ^ set(leaf.right.split(", "))  # a process had what the command was given
    return all(f"variables.{text.partition('=')[0]}" in differing for text in texts if "=" in text)


def _is_unknown(leaf: Difference, runs: RunPair) -> bool:
    """Return whether a module is missing because a process was stopped before it reported its imports."""
    if not leaf.name.startswith("code."):
        return False
    sides = [scan for scan, text in ((runs.left, leaf.left), (runs.right, leaf.right)) if text == NONE]
    return any(process.was_stopped for scan in sides for process in scan.processes.values())


def rule_for(name: str) -> FactRule:
    """Return the rule for the difference of this fact."""
    lower_name = name.lower()
    return next(rule for rule in RULES.rules if any(fnmatchcase(lower_name, pattern) for pattern in rule.patterns))


def fact(name: str, left: str, right: str) -> Difference:
    """Return a leaf for one fact of the environment."""
    if left == right:
        return Difference(name, Verdict.IDENTICAL if left else Verdict.NOT_RECORDED, left, right)
    rule = rule_for(name)
    return _differing_leaf(name, left, right, rule.meaning, can_change=rule.can_change_results)


def _state(part: Switch | Loading | None) -> str:
    return "" if part is None else part.words


def _launch_facts(left: RunFile, right: RunFile) -> Iterator[Difference]:
    """Yield the surroundings recorded in run.json."""
    names = sorted({*left.variables, *right.variables})
    for name in names:
        yield fact(f"variables.{name}", left.variables.get(name, ""), right.variables.get(name, ""))
    patches = _patches(left), _patches(right)
    for name in sorted({*patches[0], *patches[1]}):
        yield fact(f"patches.{name}", patches[0].get(name, ""), patches[1].get(name, ""))
    yield fact("address randomization", _state(left.address_randomization), _state(right.address_randomization))
    yield fact("environment size", _number(left.environment_size), _number(right.environment_size))
    yield fact("reprokit", left.reprokit, right.reprokit)
    yield fact("shim", _state(left.shim), _state(right.shim))
    yield fact("agent", _state(left.agent), _state(right.agent))


def _patches(run: RunFile) -> dict[str, str]:
    """Return the state of each patch; one with several values has several states."""
    states_by_patch: dict[str, list[str]] = {}
    for patch in run.patches[:MAX_FACTS]:
        states_by_patch.setdefault(patch.id, []).append(f"{patch.value} {patch.state}".strip())
    return {name: ", ".join(states) for name, states in states_by_patch.items()}


def _number(value: int) -> str:
    return str(value) if value else ""


def _host_facts(runs: RunPair) -> Iterator[Difference]:
    """Yield the facts of environment.json one by one."""
    left, right = (run.environment() for run in runs.directories)
    # A side lacks the file only if its launcher died at once, or if the file was removed.
    if left is None and right is None:
        yield Difference("host facts", Verdict.NOT_RECORDED)
        return
    if left is None or right is None:
        yield missing("host facts", "" if left is None else "recorded", "" if right is None else "recorded")
        return
    yield from _many_files(left, right)
    facts = dict(flat(left)), dict(flat(right))
    for name in sorted({*facts[0], *facts[1]}, key=natural)[:MAX_FACTS]:
        if not any(fnmatchcase(name.lower(), pattern) for pattern in _COMPARED_ELSEWHERE):
            yield fact(name, facts[0].get(name, ""), facts[1].get(name, ""))


def flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the facts of a nested object by the path of their keys; entries of files by their path."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from flat(inner, f"{prefix}{key}.")
        elif isinstance(inner, list) and all(isinstance(item, dict) and "path" in item for item in inner):
            for item in inner:
                facts = {name: fact for name, fact in item.items() if name != "path"}
                yield from flat(facts, f"{prefix}{key}.{item['path']}.")
        elif isinstance(inner, list):
            yield f"{prefix}{key}", ", ".join(str(item) for item in inner)
        else:
            yield f"{prefix}{key}", "" if inner is None else str(inner)


def _frameworks(runs: RunPair) -> Iterator[Difference]:
    """Yield the imported frameworks' versions and the Python that ran the training."""
    left, right = runs.left, runs.right
    pythons = _pythons(runs, 0), _pythons(runs, 1)
    yield fact("python of the training", ", ".join(pythons[0]), ", ".join(pythons[1]))
    for name in sorted({*left.frameworks, *right.frameworks}):
        versions = left.frameworks.get(name, set()), right.frameworks.get(name, set())
        yield fact(f"frameworks.{name}", ", ".join(sorted(versions[0])), ", ".join(sorted(versions[1])))


def _pythons(runs: RunPair, side: int) -> list[str]:
    scan = (runs.left, runs.right)[side]
    agents = [process.agent for process in scan.processes.values() if process.agent is not None]
    return sorted({f"{agent.implementation} {agent.python}" for agent in agents})


def _pids(scan: MetricsScan) -> list[int]:
    return [process.agent.pid for process in scan.processes.values() if process.agent is not None]


def _compute_facts(runs: RunPair) -> Iterator[Values]:
    """Yield the libraries with equal facts in both runs, and each fact that differs."""
    pairs = [pair for pair in runs.of("compute") if stopped_side(runs, pair) is None]
    yield from dict.fromkeys(_same(pair) for pair in pairs if pair.same)
    counts = Counter(values for pair in pairs if not pair.same for values in _different(pair))
    for (name, left, right), count in counts.items():
        yield (name if count == 1 else f"{name} ({count} processes)"), left, right


def _same(pair: SeriesPair) -> Values:
    line = pair.left.last if pair.left is not None else None
    text = ", ".join(f"{key} {_text(value)}" for key, value in (line or {}).get("facts", {}).items() if value != [])
    return f"compute.{pair.key.name}", text or "the same", text or "the same"


def _different(pair: SeriesPair) -> Iterator[Values]:
    name = f"compute.{pair.key.name}"
    if pair.left is None or pair.right is None:
        yield name, "used" if pair.left else "", "used" if pair.right else ""
        return
    left, right = _facts(pair.left_line), _facts(pair.right_line)
    for key in [*left, *(key for key in right if key not in left)]:
        if left.get(key) != right.get(key):
            yield f"{name}.{key}", _text(left.get(key)), _text(right.get(key))


def _facts(line: Raw | None) -> Raw:
    facts: Raw = (line or {}).get("facts", {})
    return facts


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _listings(runs: RunPair) -> Iterator[Difference]:
    """Yield a leaf for each directory whose listings differ, and the number of others."""
    pairs = list(runs.of("listing"))
    yield from _same_count("directory listings", sum(pair.same for pair in pairs))
    one_sided = [pair.key.name for pair in pairs if pair.left is None or pair.right is None]
    if one_sided:
        words = f"{len(one_sided)}, first {one_sided[0]}"
        yield information("directories listed in one run only", words, "", "what is listed follows from something else")
    yield from dict.fromkeys(_leaf(pair) for pair in pairs if pair.position is not None)


def _leaf(pair: SeriesPair) -> Difference:
    left, right = pair.left_line, pair.right_line
    name = f"listing of {pair.key.name}"
    return information(name, _short(left), _short(right), _meaning(left, right), can_change_results=True)


def _short(line: Raw | None) -> str:
    """Return a listing in a few words that distinguish it from another."""
    return "not listed again" if line is None else f"{line['count']} names, order {line['order'][:12]}"


def _meaning(left: Raw | None, right: Raw | None) -> str:
    if left is None or right is None:
        return "can change results: it changed while only one of the runs went on"
    if (left["count"], left["names"]) == (right["count"], right["names"]):
        return f"can change results: {_OTHER_ORDER}"
    return f"can change results: {_OTHER_NAMES if left['whole'] and right['whole'] else _INCOMPLETE}"


def _many_files(left: Facts, right: Facts) -> Iterator[Difference]:
    """Yield a leaf for each file or package that differs, and one per kind for the equal ones."""
    yield from _files("code", _texts(left.get("code")), _texts(right.get("code")), "the script or a module of its own")
    untracked_left, untracked_right = (_texts(_object(facts.get("git")).get("untracked")) for facts in (left, right))
    yield from _files(
        "git.untracked", untracked_left, untracked_right, "a file that git does not know, and no run was seen to read,"
    )
    yield from _packages(left, right)
    yield from _data(_entries(left), _entries(right))


def _object(value: Any) -> Facts:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> dict[str, str]:
    """Return the texts of what should be an object of texts, by name."""
    pairs = list(_object(value).items())[:MAX_FACTS]
    return {name: text for name, text in pairs if isinstance(text, str)}


def _entries(facts: Facts) -> dict[str, Facts]:
    """Return the entries of data that was read, by path."""
    data = facts.get("data")
    entries = data[:MAX_FACTS] if isinstance(data, list) else []
    return {entry["path"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)}


def _union(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return sorted({*left, *right})


def _differing_leaf(name: str, left: str, right: str, meaning: str, *, can_change: bool = True) -> Difference:
    """Return a leaf for a fact that differs."""
    words = f"{'can' if can_change else 'cannot'} change results: {meaning}"
    texts, absent = (left or NONE, right or NONE), lacking(left, right)
    return Difference(name, Verdict.INFORMATION, *texts, words, can_change, lacking=absent)


def _same_count(name: str, count: int) -> Iterator[Difference]:
    if count:
        yield Difference(name, Verdict.IDENTICAL, f"{count} the same", f"{count} the same")


def _files(kind: str, left: dict[str, str], right: dict[str, str], description: str) -> Iterator[Difference]:
    names = _union(left, right)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        texts = left.get(name, ""), right.get(name, "")
        difference = "has other bytes" if all(texts) else "was there in one run only"
        yield _differing_leaf(f"{kind}.{name}", *texts, f"{description} {difference}")
    yield from _same_count(f"{kind}.files", len(names) - len(differing))


def _packages(left: Facts, right: Facts) -> Iterator[Difference]:
    """Yield imported packages one by one, and the others in one line, as they cannot have changed anything."""
    versions = _texts(left.get("packages")), _texts(right.get("packages"))
    frameworks = _texts(left.get("frameworks")), _texts(right.get("frameworks"))
    used_by = _imported(left), _imported(right)
    used = None if used_by[0] is None or used_by[1] is None else used_by[0] | used_by[1]
    names = _union(*versions)
    differing = [name for name in names if versions[0].get(name) != versions[1].get(name)]
    not_imported = []
    for name in differing:
        texts = versions[0].get(name, ""), versions[1].get(name, "")
        if (frameworks[0].get(name), frameworks[1].get(name)) == texts:
            continue  # reported as a framework
        if used is not None and name not in used:
            not_imported.append(f"{name} {texts[0] or '(none)'} against {texts[1] or '(none)'}")
            continue
        yield _differing_leaf(f"packages.{name}", *texts, _PERHAPS if used is None else _IMPORTED)
    if not_imported:
        shown = "; ".join(not_imported[:SHOWN]) + ("; ..." if len(not_imported) > SHOWN else "")
        words = f"{len(not_imported)} differ that no run imported: {shown}"
        yield information("packages that were not imported", "", "", f"cannot change results: {words}")
    yield from _same_count("packages.all", len(names) - len(differing))


_IMPORTED = "another version of a package that the training imported may compute otherwise"
_PERHAPS = "another version of a package may compute otherwise; a run was killed before it could say what it imported"


def _imported(facts: Facts) -> set[str] | None:
    """Return the imported packages; None if unknown."""
    names = facts.get("imported")
    return {name for name in names[:MAX_FACTS] if isinstance(name, str)} if isinstance(names, list) else None


def _data(left: dict[str, Facts], right: dict[str, Facts]) -> Iterator[Difference]:
    leaves = [_data_leaf(f"data.{name}", left.get(name), right.get(name)) for name in _union(left, right)]
    yield from (leaf for leaf in leaves if leaf is not None)
    yield from _same_count("data.files", leaves.count(None))


def _data_leaf(name: str, left: Facts | None, right: Facts | None) -> Difference | None:
    """Return a leaf for one file; None if its digests are equal."""
    texts = data_reads.described(left), data_reads.described(right)
    if left is None or right is None:
        return _differing_leaf(name, *texts, f"only the {'right' if left is None else 'left'} run read it")
    digests = str(left.get("digest", "")), str(right.get("digest", ""))
    if digests[0] and digests[0] == digests[1]:
        return None
    if all(digest.startswith("etag:") for digest in digests):
        return _differing_leaf(name, *texts, "the object was overwritten: its ETag is another one")
    if all(digest.startswith("pipe-") for digest in digests):
        return _differing_leaf(name, *texts, data_reads.pipe_words(left, right))
    if left.get("size") != right.get("size"):
        return _differing_leaf(name, *texts, "the data has another size")
    if all(digests) and digests[0].partition(":")[0] == digests[1].partition(":")[0]:
        return _differing_leaf(name, *texts, "the data has other bytes")
    notes = [str(entry["note"]) for entry in (left, right) if entry.get("note") and not entry.get("digest")]
    reason = f" ({notes[0]})" if notes else ""
    meaning = f"its bytes were not compared, as they were not read whole or in the same way both times{reason}"
    return Difference(name, Verdict.NOT_RECORDED, *texts, meaning)
