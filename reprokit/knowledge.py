"""What is known of operations and settings that do not repeat: the facts of profiles/*.toml, and search in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import KnowledgeError

SCHEMA = 1
PROFILES = Path(__file__).parent / "profiles"
LARGEST_FILE = 4 << 20

Verdict = Literal["varies", "raises", "repeats", "random", "setting"]
Shows = Literal["run-to-run", "thread-count", "cpu-capability", "uninitialized-memory", "timing"]
Device = Literal["cpu", "cuda", "rocm", "xpu", "npu", "tpu"]
Direction = Literal["forward", "backward", "data"]
How = Literal["measured", "source-read", "reported"]
Value = bool | int | float | str

# What is observed in a phase may be said of these directions; of another phase all.
PHASES = {
    "forward": frozenset({"forward"}),
    "update": frozenset({"forward"}),
    "backward": frozenset({"backward"}),
    "data": frozenset({"data", "forward"}),
}
WITHIN_ONE_MACHINE = frozenset({"run-to-run", "uninitialized-memory", "timing"})


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a training a fact is about; names may be globs."""

    operators: tuple[str, ...] = ()
    overloads: tuple[str, ...] = ()  # of these operators only; none named: all
    attributes: Mapping[str, Value] = msgspec.field(default_factory=dict)  # all must be the observed call's
    dtypes: tuple[str, ...] = ()  # one of them must be among the call's; none named: all
    functions: tuple[str, ...] = ()
    settings: Mapping[str, Value] = msgspec.field(default_factory=dict)
    variables: tuple[str, ...] = ()


class Mitigation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way out: a patch of reprokit's, or what a person does."""

    patch: str = ""
    does: str = ""
    cost: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a fact is believed."""

    source: str
    how: How
    note: str = ""


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operation or setting, and how it shows that it does not repeat, or that it does."""

    id: str
    title: str
    verdict: Verdict
    shows: tuple[Shows, ...] = ()
    versions: str = ""  # a PEP 440 specifier of the file's framework
    devices: tuple[Device, ...]
    direction: tuple[Direction, ...] = ()
    threads: int | None = None  # the least number with which it shows
    why: str = ""
    match: Match = Match()
    mitigation: tuple[Mitigation, ...] = ()
    evidence: tuple[Evidence, ...]

    @property
    def framework(self) -> str:
        """The framework whose file holds the fact: pytorch, tensorflow, ..."""
        return self.id.partition(".")[0]

    @property
    def differs_on_one_machine(self) -> bool:
        """Whether two runs with the same threads on the same machine may differ by it."""
        return self.verdict in ("varies", "raises") and not WITHIN_ONE_MACHINE.isdisjoint(self.shows)

    @property
    def measured(self) -> bool:
        """Whether the fact was observed and not only read about."""
        return any(evidence.how == "measured" for evidence in self.evidence)

    def applies(self, framework: str = "", version: str = "", device: str = "") -> bool:
        """Return whether it is about this framework, version and device; an empty one excludes nothing."""
        return (
            framework in ("", self.framework)
            and (not version or _contains(self.versions, version))
            and (not device or not _devices(device).isdisjoint(self.devices))
        )


class _FactsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of profiles/."""

    schema: Literal[1]
    framework: str
    fact: tuple[Fact, ...]


def load(directory: Path | None = None) -> tuple[Fact, ...]:
    """Return all facts, in the order of their files' names."""
    place = PROFILES if directory is None else directory
    facts: dict[str, Fact] = {}
    for path in sorted(place.glob("*.toml")):
        for fact in _read(path):
            if fact.id in facts:
                raise KnowledgeError(f"{path}: two facts have the id {fact.id!r}; give one of them another")
            facts[fact.id] = fact
    if not facts:
        raise KnowledgeError(f"there are no facts in {place}; reinstall reprokit")
    return tuple(facts.values())


def matching_operator(
    facts: Iterable[Fact],
    framework: str,
    version: str,
    name: str,
    device: str,
    attributes: Mapping[str, Any],
    direction: str,
    *,
    overload: str = "",
    dtypes: Sequence[str] = (),
) -> tuple[Fact, ...]:
    """The facts about one observed call of an operator; an update counts as forward, an unknown direction as both."""
    phases = PHASES.get(direction)
    return tuple(
        fact
        for fact in facts
        if framework in ("", fact.framework)
        and _names(fact.match.operators, name)
        and (phases is None or not fact.direction or not phases.isdisjoint(fact.direction))
        and overload in (fact.match.overloads or (overload,))
        and all(key in attributes and _same(value, attributes[key]) for key, value in fact.match.attributes.items())
        and _shares(fact.match.dtypes, dtypes)
        and fact.applies(framework, version, device)
    )


def matching_function(facts: Iterable[Fact], name: str, version: str = "", *, device: str = "") -> tuple[Fact, ...]:
    """Return the facts about a function, by its qualified name; a device only where all that runs does so on it."""
    return tuple(
        fact for fact in facts if _names(fact.match.functions, name) and fact.applies(version=version, device=device)
    )


def matching_setting(facts: Iterable[Fact], name: str, value: object) -> tuple[Fact, ...]:
    """Return the facts about a setting that has this value."""
    return tuple(fact for fact in facts if name in (known := fact.match.settings) and _same(known[name], value))


def matching_variable(facts: Iterable[Fact], name: str) -> tuple[Fact, ...]:
    """Return the facts about an environment variable."""
    return tuple(fact for fact in facts if _names(fact.match.variables, name))


def search(facts: Iterable[Fact], words: Sequence[str]) -> tuple[Fact, ...]:
    """Return the facts in which every word occurs, those first where it is in the name."""
    lowered = [word.casefold() for word in words]
    matching = [fact for fact in facts if all(word in _text(fact) for word in lowered)]
    return tuple(sorted(matching, key=lambda fact: -sum(word in _name(fact) for word in lowered)))


def document(fact: Fact) -> dict[str, Any]:
    """Return a fact as JSON has it."""
    built: dict[str, Any] = msgspec.to_builtins(fact)
    return {"framework": fact.framework, **built}


def near(facts: Iterable[Fact], name: str) -> tuple[str, ...]:
    """Ids that somebody may have meant."""
    from difflib import get_close_matches

    return tuple(get_close_matches(name, [fact.id for fact in facts], n=3, cutoff=0.5))


def _read(path: Path) -> tuple[Fact, ...]:
    """Return the facts of one file."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise KnowledgeError(f"{path}: larger than {LARGEST_FILE} bytes; no file of facts is")
        raw = toml_text.loads(path.read_text(encoding="utf-8"))
    except (toml_text.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KnowledgeError(f"{path}: not TOML: {error}") from error
    try:
        file = msgspec.convert(raw, _FactsFile)
    except msgspec.ValidationError as error:
        raise KnowledgeError(f"{path}: {_located(str(error), raw)}; see profiles/README.md") from error
    for fact in file.fact:
        for mistake in _mistakes(fact, file.framework):
            raise KnowledgeError(f"{path}: {fact.id}: {mistake}")
    return file.fact


def _located(message: str, raw: Mapping[str, Any]) -> str:
    """Return msgspec's message with the id of the fact instead of its position."""
    number = re.search(r"\$\.fact\[(\d+)\]", message)
    if number is None:
        return message
    fact = raw["fact"][int(number[1])]
    return f"{fact.get('id', 'a fact without id') if isinstance(fact, dict) else 'a fact'}: {message}"


def _mistakes(fact: Fact, framework: str) -> Iterator[str]:
    """Yield what is wrong with a fact beyond its keys and the kinds of their values."""
    if not re.fullmatch(rf"{re.escape(framework)}\.[a-z0-9]+(-[a-z0-9]+)*", fact.id):
        yield f"the id must be {framework!r}, a dot, and words in lower case with hyphens"
    if not fact.title or not fact.devices or not fact.evidence:
        yield "title, devices and evidence must not be empty"
    if not _is_specifier(fact.versions):
        yield f"versions = {fact.versions!r} is not a version specifier, such as '>=1.13,<3'"
    if fact.verdict in ("varies", "raises") and not fact.shows:
        yield "shows must say how it varies"
    if fact.verdict != "setting" and fact.match == Match():
        yield "match must name an operator, function, setting or variable"
    if fact.threads is not None and fact.threads < 1:
        yield f"threads = {fact.threads} is not a number of threads"
    for mitigation in fact.mitigation:
        if not mitigation.patch and not mitigation.does:
            yield "each mitigation needs patch or does"


def _is_specifier(versions: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        return False
    return True


@lru_cache(maxsize=1024)
def _contains(versions: str, version: str) -> bool:
    """Return whether a version is one of these; one that cannot be read excludes nothing."""
    if not versions:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return True


def _devices(device: str) -> frozenset[str]:
    """Return the kinds of device that a name such as cuda:0 or /device:GPU:0 may stand for."""
    kind = device.lower().rpartition("device:")[2].partition(":")[0]
    return frozenset({"cuda", "rocm"}) if kind in ("gpu", "cuda", "hip") else frozenset({kind})


def _names(patterns: Sequence[str], name: str) -> bool:
    return name in patterns or any("*" in pattern and fnmatchcase(name, pattern) for pattern in patterns)


def _same(expected: Value, observed: object) -> bool:
    return expected == observed and isinstance(expected, bool) == isinstance(observed, bool)


def _shares(expected: Sequence[str], observed: Sequence[str]) -> bool:
    return not expected or not observed or any(name.rpartition(".")[2] in expected for name in observed)


def _name(fact: Fact) -> str:
    match = fact.match
    named = [*match.operators, *match.functions, *match.settings, *match.variables]
    return " ".join([fact.id, fact.title, *named]).casefold()


def _text(fact: Fact) -> str:
    """Return all that is said in a fact."""
    ways = [text for way in fact.mitigation for text in (way.patch, way.does, way.cost)]
    sources = [text for evidence in fact.evidence for text in (evidence.source, evidence.how, evidence.note)]
    words = [fact.verdict, fact.why, *fact.shows, *fact.devices, *fact.direction, *ways, *sources]
    return f"{_name(fact)} {' '.join(words).casefold()}"
