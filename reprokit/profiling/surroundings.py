"""Makes findings about functions, settings, variables, loaders, and orders of completion."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reprokit.core.printable import cut
from reprokit.knowledge import Fact, matching_function, matching_setting, matching_variable
from reprokit.profiling import cures
from reprokit.profiling.groups import Occurrences, occurrences_of
from reprokit.profiling.lines import Completion, Function, Loader, Setting, place
from reprokit.run_files import findings
from reprokit.run_files.findings import FUNCTION, MAX_PLACES, ORDER, SETTING, Cure, Finding

MAX_KEPT = 20_000  # entries each of functions, settings, loaders and completions
MAX_NAMES = 100_000  # functions for which it is cached whether a fact is known
MAX_VALUE = 200  # characters
THREADS = {  # settings that hold the number of threads of a framework
    "torch.get_num_threads": "pytorch",
    "tf.config.threading.intra_op": "tensorflow",
    "tf.ConfigProto.intra_op_parallelism_threads": "tensorflow",
}
ORDER_RANK, DATA_ORDER_RANK, SETTING_RANK, SUSPECTED_SETTING_RANK, FUNCTION_RANK = 60.0, 55.0, 20.0, 45.0, 40.0
OF_COMPILERS = ("torch._inductor.", "torch._dynamo.")  # prefixes of settings that affect compiled code only
COMPLETION_WHY = "results are taken in the order in which workers finish, and that depends on timing"
DATA_WHY = "elements are handed on in the order in which parallel calls finish, and that depends on timing"
DRAWS_WHY = "functions that run beside each other draw random numbers, in the order in which they come to it"
KEEP_ORDER = Cure("tf-data", "make the pipeline deterministic", "it may wait for the slowest element")
DRAWING = ("tf.data.Dataset.map", "tf.data.Dataset.interleave")
SHARED_MEMORY = "python.shared-memory"
LOOPS_METHODS = (  # of asyncio, which wait for sockets, pipes and programs
    *("create_connection", "create_server", "connect_read_pipe", "subprocess_exec", "subprocess_shell"),
    *("add_reader", "sock_accept", "sock_recv", "sock_recv_into"),
)
FACTS = {  # ids of known facts, by the name that agents report
    "Pool.imap_unordered": "python.imap-unordered",
    "Pool.apply_async(callback)": "python.queue-order",
    "concurrent.futures.as_completed": "python.as-completed",
    "asyncio.as_completed": "python.as-completed",
    "asyncio.sleep": "python.sleeping-tasks",
    "concurrent.futures.wait": "python.wait",
    "asyncio.wait": "python.wait",
    "duckdb.query": "duckdb.threads",
    "joblib.Parallel(return_as='generator_unordered')": "python.queue-order",
    **{f"os.{name}": "python.child-order" for name in ("wait", "wait3", "wait4", "waitid", "waitpid")},
    **{f"asyncio.{name}": "python.ready-order" for name in LOOPS_METHODS},
    "select.poll": "python.ready-order",
    "select.select": "python.ready-order",
    "selectors.select": "python.ready-order",
    "threading.Thread": "python.thread-timing",
    "ThreadPoolExecutor": "python.thread-timing",
    "multiprocessing.Array(lock=False)": SHARED_MEMORY,
    "multiprocessing.Value(lock=False)": SHARED_MEMORY,
    "torch.nn.Module.share_memory": "pytorch.hogwild",
    "torch.utils.data.DataLoader": "pytorch.loader-workers",
}
WORKERS_WHY = "how many workers there are decides who draws which random numbers: keep the number in every run"


@dataclass
class Surroundings:
    """Collects the observations of one run that are not about operators."""

    facts: Sequence[Fact]
    scale: dict[object, float] = field(default_factory=dict)  # by process: factor for unobserved steps
    functions: dict[str, Occurrences] = field(default_factory=dict)
    settings: dict[tuple[str, str], Occurrences] = field(default_factory=dict)
    values: dict[tuple[str, str], Any] = field(default_factory=dict)  # values of the settings
    loaders: dict[tuple[str, int | str | None, bool | str | None], Occurrences] = field(default_factory=dict)
    completions: dict[str, Occurrences] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._is_known = functools.lru_cache(MAX_NAMES)(lambda name: any(matching_function(self.facts, name)))

    def add_function(self, process: int, line: Function) -> None:
        """Add a function; ignored if no fact about it is known."""
        if self._is_known(line.name):
            seen = occurrences_of(self.functions, line.name, MAX_KEPT)
            seen.add(process, line.calls)
            for frame in line.where[:MAX_PLACES]:
                seen.add_place(place(frame), frame[3])

    def add_setting(self, process: int, line: Setting) -> None:
        """Add a setting's value in one process."""
        key = (line.name, _text(line.value))
        occurrences_of(self.settings, key, MAX_KEPT).add(process, 0)
        if key in self.settings:
            self.values.setdefault(key, line.value)

    def add_loader(self, process: int, line: Loader) -> None:
        """Add a data loader."""
        key = (line.name, line.workers, line.deterministic)
        occurrences_of(self.loaders, key, MAX_KEPT).add(process, line.calls, map(place, line.where[:1]))

    def add_completion(self, process: int, line: Completion) -> None:
        """Add an order of completion, which depends on timing."""
        if not line.ordered:
            occurrences_of(self.completions, line.name, MAX_KEPT).add(process, line.calls, map(place, line.where[:1]))

    @property
    def threads(self) -> dict[str, int]:
        """Return the largest observed number of threads by framework."""
        most: dict[str, int] = {}
        for (name, _), value in self.values.items():
            framework = THREADS.get(name, "")
            if framework and type(value) is int and value > 0:
                most[framework] = max(value, most.get(framework, 0))
        return most

    def findings(
        self, versions: Mapping[str, str], devices: set[str], reported: set[str], *, compiles: bool, draws: bool
    ) -> list[Finding]:
        """Return the findings; ``reported`` are ids of facts in findings about operators."""
        loader_findings = [
            loader for loader in self._loader_findings(draws) if loader.kind != ORDER or loader.fact not in reported
        ]
        results = [*self._completion_findings(), *loader_findings, *self._setting_findings(versions, devices, compiles)]
        reported = reported | {finding.fact for finding in results if finding.fact is not None}
        reported |= set(FACTS.values()) - {SHARED_MEMORY}  # calls of functions would report these again
        return [*results, *self._function_findings(versions, devices, reported)]

    def _completion_findings(self) -> Iterator[Finding]:
        for name, seen in self.completions.items():
            fact = self._fact(FACTS.get(name, ""))
            why = COMPLETION_WHY if fact is None else ""
            yield _finding(ORDER, name, seen, fact, findings.SUSPECT, ORDER_RANK, why=why, otherwise=_in_order(name))

    def _loader_findings(self, draws: bool) -> Iterator[Finding]:
        """Yield findings on loaders; ``draws``: whether functions of tf.data draw random numbers."""
        for (name, workers, deterministic), seen in self.loaders.items():
            if deterministic is False or (name in DRAWING and workers not in (None, 0, 1) and draws):
                is_unordered = deterministic is False
                fact_id = "tensorflow.data-deterministic-off" if is_unordered else "tensorflow.data-parallel-map"
                why = DATA_WHY if is_unordered else DRAWS_WHY
                fact, verdict, keep = self._fact(fact_id), findings.SUSPECT, [KEEP_ORDER]
                yield _finding(ORDER, name, seen, fact, verdict, DATA_ORDER_RANK, why=why, otherwise=keep)
            elif name in FACTS and workers:
                why = f"{workers} {'worker' if workers == 1 else 'workers'}: {WORKERS_WHY}"
                yield _finding(SETTING, name, seen, self._fact(FACTS[name]), findings.AS_SET, SETTING_RANK, why=why)

    def _fact(self, name: str) -> Fact | None:
        return next((fact for fact in self.facts if fact.id == name), None)

    def _setting_findings(self, versions: Mapping[str, str], devices: set[str], compiles: bool) -> Iterator[Finding]:
        for (name, text), seen in self.settings.items():
            if name.startswith(OF_COMPILERS) and not compiles:
                continue
            value = self.values[name, text]
            matching = [*matching_setting(self.facts, name, value), *matching_variable(self.facts, name)]
            for fact in _fitting(matching, versions, devices)[:1]:
                verdict, rank = findings.AS_SET, SETTING_RANK
                if fact.differs_on_one_machine:
                    verdict, rank = findings.SUSPECT, SUSPECTED_SETTING_RANK
                yield _finding(SETTING, name, seen, fact, verdict, rank, subject=f"{name} = {text}")

    def _function_findings(
        self, versions: Mapping[str, str], devices: set[str], reported: set[str]
    ) -> Iterator[Finding]:
        for name, seen in self.functions.items():
            seen.scale(self.scale)
            fitting = _fitting(matching_function(self.facts, name), versions, devices)
            for fact in [fact for fact in fitting if fact.id not in reported and fact.verdict != "repeats"][:1]:
                kind, verdict, rank = FUNCTION, findings.AS_SET, SETTING_RANK
                if fact.differs_on_one_machine:
                    kind, verdict = ORDER if name in self.completions else FUNCTION, findings.SUSPECT
                    rank = FUNCTION_RANK + min(math.log10(seen.calls.total() + 1), 9.0)
                elif fact.verdict == "random":
                    verdict, rank = findings.COVERED, 1.0
                yield _finding(kind, name, seen, fact, verdict, rank)


def _fitting(facts: Iterable[Fact], versions: Mapping[str, str], devices: set[str]) -> list[Fact]:
    """Return the facts that apply to versions and devices of this run, the most serious first."""
    fits = [
        fact
        for fact in facts
        if fact.applies(version=versions.get(fact.framework, ""))
        and any(fact.applies(device=device) for device in devices)
    ]
    return sorted(fits, key=lambda fact: not fact.differs_on_one_machine)


def _in_order(name: str) -> list[Cure]:
    """Return the general cure for a function that returns results in the order of completion."""
    patch = "imap-ordered" if name.endswith("imap_unordered") else None
    return [Cure(patch, "take the results in the order in which they were asked for", "waits for the slowest")]


def _finding(
    kind: str,
    name: str,
    seen: Occurrences,
    fact: Fact | None,
    verdict: str,
    rank: float,
    *,
    subject: str = "",
    why: str = "",
    otherwise: Sequence[Cure] = (),
) -> Finding:
    """Return a finding, with the words of a known fact if there is one; ``otherwise``: cures if none is known."""
    cure = [] if verdict == findings.COVERED else cures.of_fact(fact, name) or list(otherwise)
    details: dict[str, Any] = {"cures": cure, "shows": ["run-to-run"] if verdict == findings.SUSPECT else []}
    if fact is not None:
        why = why or fact.why or fact.title
        details.update(framework=fact.framework, fact=fact.id, shows=list(fact.shows))
    return seen.finding(kind, subject or name, verdict, why, rank, **details)


def _text(value: Any) -> str:
    """Return a setting's value as a short text."""
    return cut(value if isinstance(value, str) else json.dumps(value, default=str), MAX_VALUE)
