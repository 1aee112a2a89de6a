"""Makes findings about operators from their calls, known facts, and the results of re-executing calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from reprokit.knowledge import Fact, matching_operator
from reprokit.profiling import cures
from reprokit.profiling.groups import DIFFERENT, Group, GroupKey
from reprokit.profiling.lines import CompiledCode, ConfirmedCall, OperatorLine, place
from reprokit.run_files import findings
from reprokit.run_files.findings import COMPILED, OPERATOR, ORDER, Confirmed, Cure, Finding

MAX_GROUPS = 20_000
MAX_CACHED = 50_000  # cached results of the knowledge base
MAX_NAMED = 5  # operators named in one text
UNKNOWN_CODE = "a compiler made this code: which kernels it runs is not seen"
HARMLESS_CODE = "a compiler made this code, and nothing in it is known to vary on a processor"
RACING = (  # Inductor compiles these for a processor with atomic additions
    "aten::index_add",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::scatter_add",
    "aten::embedding_dense_backward",
)
RACE = "pytorch.compiled-index-add"
PARALLEL_MAP = "tensorflow.data-parallel-map"
UNORDERED_DATA = "tensorflow.data-deterministic-off"
DRAWS = "draws"  # attribute of tf.data operators: their functions draw random numbers
BLAMED = (findings.GUILTY, findings.SUSPECT)

Facts = tuple[Fact, ...]


@dataclass
class Operators:
    """Collects the operators of one run."""

    facts: Sequence[Fact]
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    left_out: int = 0
    devices: set[str] = field(default_factory=set)
    _compiled_operators: dict[GroupKey, dict[str, None]] = field(default_factory=dict)  # operators of compiled code
    _draws: set[bool] = field(default_factory=set)
    _has_random_data: bool = False
    _cache: dict[tuple[object, ...], Facts] = field(default_factory=dict)

    def add(self, process: int, line: OperatorLine) -> None:
        """Add one distinct call."""
        self.devices.add(line.device)
        self._add(self._key(line), process, line)

    def add_compiled(self, process: int, line: CompiledCode) -> None:
        """Add compiled code."""
        key = _compiled_key(line)
        self._add(key, process, line)
        if key in self.groups:
            self._compiled_operators.setdefault(key, {}).update(dict.fromkeys(line.operators[:1000]))

    def _add(self, key: GroupKey, process: int, line: OperatorLine | CompiledCode) -> None:
        group = self._group(key)
        if group is not None:
            group.version = group.version or line.version
            group.occurrences.add(process, line.calls, map(place, line.where[:1]))

    def confirm(self, process: int, line: ConfirmedCall) -> None:
        """Add the result of re-executing a call."""
        key = _compiled_key(line)
        group = self._group(key if key in self.groups else self._key(line))
        if group is not None:
            group.confirm(process, line)

    def _group(self, key: GroupKey) -> Group | None:
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            self.left_out += 1
            return None
        return self.groups.setdefault(key, Group())

    def _key(self, line: OperatorLine | ConfirmedCall) -> GroupKey:
        facts_of_line = self._facts_of(line)
        fact = facts_of_line[0].id if facts_of_line else ""
        return GroupKey(OPERATOR, line.framework, line.name, line.phase, line.device, fact)

    def _facts_of(self, line: OperatorLine | ConfirmedCall) -> Facts:
        """Return the known facts about a call, the most serious first."""
        key = (line.framework, line.version, line.name, line.overload, line.device, line.phase)
        cache_key = (*key, tuple(line.dtypes[:8]), repr(line.attributes))
        if cache_key not in self._cache:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[cache_key] = _ordered(self._matching(line))
        return self._cache[cache_key]

    def _matching(self, line: OperatorLine | ConfirmedCall) -> Facts:
        matching = matching_operator(
            self.facts,
            line.framework,
            line.version,
            line.name,
            line.device,
            line.attributes,
            line.phase,
            overload=line.overload,
            dtypes=line.dtypes[:8],
        )
        if type(line.attributes.get(DRAWS)) is bool:
            self._draws.add(line.attributes[DRAWS] is True)
        self._has_random_data = self._has_random_data or any(fact.id == PARALLEL_MAP for fact in matching)
        return tuple(fact for fact in matching if fact.id != PARALLEL_MAP)  # reported by the loader if it is parallel

    @property
    def draws(self) -> bool:
        """Return whether parallel functions of tf.data draw random numbers; if unreported, whether a map did."""
        return True in self._draws if self._draws else self._has_random_data

    def findings(self, threads: Mapping[str, int], scale: Mapping[tuple[object, str], float]) -> Iterator[Finding]:
        """Yield the findings, not yet ordered.

        ``threads`` is the number of threads by framework, if known; ``scale`` extrapolates calls to unobserved steps.
        """
        by_id = {fact.id: fact for fact in self.facts}
        for key, group in self.groups.items():
            group.occurrences.scale(
                {process: scale.get((process, key.framework), 1.0) for process in group.occurrences.calls}
            )
            operator_finding = self._finding(key, group, by_id.get(key.fact), threads.get(key.framework))
            if operator_finding is not None:
                yield replace(operator_finding, rank=rank(operator_finding))

    def _finding(self, key: GroupKey, group: Group, fact: Fact | None, threads: int | None) -> Finding | None:
        confirmed = group.confirmed
        if key.kind == COMPILED:
            return self._compiled(key, group, confirmed, threads)
        judged = judge(fact, confirmed, threads)
        if judged is None:
            return None
        verdict, why = judged
        kind = ORDER if fact is not None and fact.id == UNORDERED_DATA else OPERATOR
        cure = _cures(key, fact, confirmed) if verdict in BLAMED else []
        return _operator_finding(kind, key, group, fact, confirmed, verdict, why, cure)

    def _compiled(self, key: GroupKey, group: Group, confirmed: Confirmed | None, threads: int | None) -> Finding:
        within = self._compiled_operators.get(key, {})
        racing = next((name for name in within if name in RACING), "")
        fact = self._fact(RACE) if racing and key.device == "cpu" else None
        is_harmless = key.device in ("", "cpu") and (bool(within) or key.framework != "pytorch")  # XLA repeats on CPUs
        unmeasured = (findings.AS_SET, HARMLESS_CODE) if is_harmless else (findings.SUSPECT, UNKNOWN_CODE)
        verdict, why = judge(fact, confirmed, threads) or unmeasured
        named = ", ".join([racing] * bool(racing) + [name for name in within if name != racing][:MAX_NAMED])
        why = f"{(why or UNKNOWN_CODE).rstrip('.')}; compiled of {named}" if named else why
        cure = cures.of_compiled(key.framework, fact, within) if verdict in BLAMED else []
        return _operator_finding(COMPILED, key, group, fact, confirmed, verdict, why, cure)

    def _fact(self, name: str) -> Fact | None:
        return next((fact for fact in self.facts if fact.id == name), None)


def _compiled_key(line: CompiledCode | ConfirmedCall) -> GroupKey:
    return GroupKey(COMPILED, line.framework, line.name, line.phase, line.device, "")


def _operator_finding(
    kind: str,
    key: GroupKey,
    group: Group,
    fact: Fact | None,
    confirmed: Confirmed | None,
    verdict: str,
    why: str,
    cure: list[Cure],
) -> Finding:
    return replace(
        group.occurrences.finding(kind, key.subject, verdict, why, 0.0),
        id=f"{key.framework}/{key.subject}" + "".join(f"/{part}" for part in (key.direction, key.device) if part),
        framework=key.framework,
        version=group.version,
        device=key.device,
        direction=key.direction,
        where=group.where,
        fact=fact.id if fact is not None else None,
        shows=list(fact.shows) if fact is not None else _shown(confirmed),
        confirmed=confirmed,
        cures=cure,
    )


def judge(fact: Fact | None, confirmed: Confirmed | None, threads: int | None) -> tuple[str, str] | None:
    """Return verdict and reason; None if nothing is known or measured."""
    why = (fact.why or fact.title) if fact is not None else ""
    if confirmed is not None and (confirmed.results > 1 or (confirmed.races and threads != 1)):
        return findings.GUILTY, why or "it gave different bits for the same inputs"
    if fact is not None and fact.verdict == "random":
        return findings.COVERED, why
    if confirmed is not None and confirmed.repeats and (fact is None or not confirmed.problem):
        return findings.CLEARED, why
    if fact is None or fact.verdict == "repeats":
        return None
    if not fact.differs_on_one_machine:
        return findings.AS_SET, why
    if fact.threads is not None and threads is not None and threads < fact.threads:
        return findings.CLEARED, f"{why}; only from {fact.threads} threads on, and here there was {threads}"
    return findings.SUSPECT, why


def _ordered(facts: Facts) -> Facts:
    """Order facts: different on one machine, then random, machine-dependent, and repeating ones."""
    order = {"random": 1, "setting": 2, "varies": 2, "raises": 2, "repeats": 3}
    return tuple(sorted(facts, key=lambda fact: 0 if fact.differs_on_one_machine else order[fact.verdict]))


def _shown(confirmed: Confirmed | None) -> list[str]:
    """Return how an operator without a known fact varied in measurements."""
    if confirmed is None:
        return []
    shows = ["run-to-run"] if confirmed.races else []
    if DIFFERENT & set(confirmed.threads.values()):
        shows.append("thread-count")
    if DIFFERENT & set(confirmed.capabilities.values()):
        shows.append("cpu-capability")
    return shows


def _cures(key: GroupKey, fact: Fact | None, confirmed: Confirmed | None) -> list[Cure]:
    of_known_fact = cures.of_fact(fact, key.subject)
    return of_known_fact or cures.of_unknown_operator(key.framework, key.subject, key.device, confirmed)


def rank(finding: Finding) -> float:
    """Return a score of how likely a finding makes runs differ: measured ones, then known ones, then the rest."""
    if finding.only_unwritten_memory:
        return round(15.0 + min(math.log10(finding.calls + 1), 4.0), 3)
    base = {findings.GUILTY: 100.0, findings.SUSPECT: 50.0, findings.AS_SET: 20.0, findings.CLEARED: 10.0}
    measured = (
        finding.confirmed.results / finding.confirmed.repeats if finding.confirmed and finding.confirmed.repeats else 0
    )
    return round(base.get(finding.verdict, 1.0) + 10 * measured + min(math.log10(finding.calls + 1), 9.0), 3)
