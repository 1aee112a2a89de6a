"""Builds the directories of studies line by line, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit.study import store
from reprokit.study.analysis import analyze
from reprokit.study.description import Setup, Study
from reprokit.study.facts import Analysis, Overhead
from reprokit.study.predictions import KeptFile, KeptPredictions
from reprokit.study.results import Evaluation, Label, MetricSeries, PairResult, RunResult


def pairs_of(*values: Any) -> Iterator[tuple[int, str, Any]]:
    """The number and part of each run with its value."""
    for number, value in enumerate(values):
        yield number // 2 + 1, "second" if number % 2 else "first", value


@dataclass
class Making:
    """A study in the making: its results are lines, as a runner would have written them."""

    path: Path
    study: Study
    results: list[RunResult] = field(default_factory=list)
    pairs: list[PairResult] = field(default_factory=list)

    def run(self, setup: str, pair: int, part: str, seconds: float = 10.0, **keys: Any) -> None:
        facts = {"mode": "observed", "outcome": "finished", "processor": 2 * seconds, "host": "here", **keys}
        made = {"setup": setup, "pair": pair, "part": part, "seconds": seconds, **facts}
        self.results.append(msgspec.convert(made, RunResult))

    def times(self, setup: str, seconds: Sequence[float], **keys: Any) -> None:
        """Finished runs of a setup that took so long."""
        for pair, part, value in pairs_of(*seconds):
            self.run(setup, pair, part, value, **keys)

    def pair(self, setup: str, pair: int, identical: bool | None, **keys: Any) -> None:
        same = {"process_equal": identical, "evaluation_equal": identical, **keys}
        self.pairs.append(PairResult(setup=setup, pair=pair, identical=identical, **same))

    def predicted(self, setup: str, pair: int, part: str, truth: str = "", **evaluations: Sequence[str]) -> str:
        """Keep the labels that a run predicted; the name of the file."""
        name = f"predictions/{store.name_of(setup, pair, part)}.json"
        kept = {}
        for title, labels in evaluations.items():
            known = list(dict.fromkeys(labels))
            kept[title] = KeptPredictions(known, [known.index(label) for label in labels], truth)
        (self.path / "predictions").mkdir(exist_ok=True)
        (self.path / name).write_bytes(msgspec.json.encode(KeptFile(evaluations=kept)))
        return name

    def write(self) -> Path:
        store.write_study(self.path, store.StudyFile(reprokit="0", study=self.study, base="/", host={"host": "here"}))
        for result in self.results:
            store.add_result(self.path, result)
        for pair in self.pairs:
            store.add_pair(self.path, pair)
        return self.path

    def analysis(self) -> Analysis:
        return analyze(self.write())


def making(path: Path, *setups: Setup, runs: int = 16, **keys: Any) -> Making:
    """A study of these setups with no results yet."""
    return Making(path, Study(name="s", command=("python", "train.py"), runs=runs, setup=setups, **keys))


def series(*values: float | None, name: str = "loss", by: str = "epoch") -> MetricSeries:
    return msgspec.convert({"name": name, "values": list(values), "by": by}, MetricSeries)


def classified(
    right: int,
    of: int,
    predictions: str = "",
    *,
    name: str = "evaluate",
    classes: Mapping[str, tuple[int, int]] | None = None,
) -> Evaluation:
    """An evaluation of a classification; classes: right and all."""
    labels = [Label(label=label, count=count, correct=correct) for label, (correct, count) in (classes or {}).items()]
    return Evaluation(
        name=name,
        task="classification",
        count=of,
        accuracy=right / of,
        labels=labels,
        predictions=predictions,
    )


def regressed(mae: float, name: str = "evaluate", count: int = 10) -> Evaluation:
    return Evaluation(name=name, task="regression", count=count, mae=mae)


def row(analysis: Analysis, setup: str, base: str, measure: str = "time") -> Overhead:
    """The only row of these names."""
    (found,) = [one for one in analysis.overhead if (one.setup, one.base, one.measure) == (setup, base, measure)]
    return found
