"""Words the figures of a study for readers without knowledge of statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from reprokit.core.printable import cut
from reprokit.study import facts, statistics
from reprokit.verify.verdict import every_pair_was, nothing_varies, nothing_varies_in, pairs_are

MAX_TEXT: Final = 400  # characters of a text of a run
MAX_LISTED: Final = 8
FEW: Final = 0.05  # share of differing further pairs that a study should exclude
_VERBS: Final = {"time": "took", "processor time": "used", "storage": "stored"}


def short(text: str) -> str:
    """Return a text of a run within bounds; presenters make it printable."""
    return cut(text, MAX_TEXT)


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """Return a number with a number of significant digits, without an exponent if possible."""
    return "-" if value is None else f"{float(f'{value:.{digits}g}'):{sign}g}"


def percent(share: float, digits: int = 3) -> str:
    """Return a share as per cent."""
    return f"{number(100 * share, digits)} %"


def points(difference: float | None) -> str:
    """Return a difference of two shares in percentage points."""
    return number(None if difference is None else 100 * difference)


def quantity(value: float | None, unit: str) -> str:
    """Return seconds or bytes with their unit."""
    if value is None:
        return "-"
    return size(value) if unit == "B" else f"{number(value)} s" if abs(value) < 1000 else f"{value:,.0f} s"


def size(value: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{number(value)} {unit}"
        value /= 1024
    return f"{number(value)} TiB"


def between(interval: facts.Interval | None) -> str:
    """Return a ratio's interval as change in per cent."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"between {change(interval.low)} and {change(interval.high)}"


def change(ratio: float) -> str:
    """Return a ratio as change in per cent."""
    return f"{number(100 * (ratio - 1), sign='+')} %" if ratio < 10 else f"{number(ratio)} times as much"


def p_value(p: float | None) -> str:
    """Return a p value as it is reported: never as zero."""
    if p is None:
        return "-"
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def of(share: facts.Share) -> str:
    """Return the uncertainty of a share in words."""
    low, high = share.interval.low or 0.0, share.interval.high or 0.0
    if share.count == 0:
        return f"up to {percent(high, 2)} of further pairs could still differ"
    if share.count == share.of:
        return f"at least {percent(low, 2)} of further pairs would differ"
    return f"between {percent(low, 2)} and {percent(high, 2)} of further pairs would differ"


def further(share: facts.Share | None) -> str:
    """Return how many further pairs would differ, in a cell."""
    if share is None:
        return "-"
    low, high = share.interval.low or 0.0, share.interval.high or 0.0
    if share.count in (0, share.of):
        return f"{'up to' if share.count == 0 else 'at least'} {percent(high if share.count == 0 else low, 2)}"
    return f"{percent(low, 2)} to {percent(high, 2)}"


# ---- a sentence a row ------------------------------------------------------------------------------------------------


def pairs(counts: facts.PairCounts) -> str:
    """Return the outcome of a setup's pairs in words."""
    share = counts.differing
    left = f"; {counts.not_compared} could not be compared" if counts.not_compared else ""
    if share is None:
        return f"No pair could be compared{left and f' ({counts.not_compared} were made)'}."
    if share.count == 0:
        needed = statistics.pairs_to_exclude(FEW)
        more = f"; to bring that below {percent(FEW)} takes {needed} pairs" if share.of < needed else ""
        return f"{pairs_are(share.of, share.of)}{left}. With 95 % confidence {of(share)}{more}."
    return f"{share.count} of {share.of} pairs differ{left}. With 95 % confidence {of(share)}."


def overhead(row: facts.Overhead) -> str:
    """Return what a row of the table of overheads means."""
    what, verb = row.measure, _VERBS[row.measure]
    medians = f"{quantity(row.median, row.unit)} against {quantity(row.base_median, row.unit)}"
    if not all(row.runs):
        return f"{what}: no run of {row.setup if not row.runs[0] else row.base} finished, so there is nothing to say."
    if row.finding == "not comparable":
        return f"{what}: runs were made at the same time, so the times of {row.setup} and {row.base} say nothing."
    if row.finding == "too few runs":
        needed = f"; {row.needed} of each are needed {row.needed_why}" if row.needed is not None else ""
        return f"{what}: {row.runs[0]} and {row.runs[1]} runs are too few to tell {row.setup} from {row.base}{needed}."
    if row.finding == "no difference shown":
        return _none_shown(row, what, medians)
    sure = between(row.ratio_interval)
    if sure and row.ratio_interval is not None:
        sure = f", {sure} with {percent(row.ratio_interval.confidence, 2)} confidence"
    direction = "more" if row.finding == "more" else "less"
    amount = f" ({change(row.ratio)}{sure})" if row.ratio is not None else f" (by {quantity(row.difference, row.unit)})"
    often = percent((1 + abs(row.delta or 0.0)) / 2, 2)
    chance = f"a run of {row.setup} {verb} {direction} than a run of {row.base} in {often} of cases"
    told = (
        f"{row.setup} {verb} {direction} {what} than {row.base}: {medians}{amount}; {chance} ({row.magnitude} effect)"
    )
    return f"{told}. {_by_chance(row.p_adjusted)}"


def _by_chance(p: float | None) -> str:
    """Return a small p in words."""
    studies = "a million" if p is None or p < 1e-6 else f"{float(number(1 / p, 2)):,.0f}"
    return f"Were there no difference, only about one of {studies} such studies would show any as clear."


def _none_shown(row: facts.Overhead, what: str, medians: str) -> str:
    if row.difference_interval is not None and row.difference_interval.low == row.difference_interval.high == 0:
        return f"{what}: {row.setup} and {row.base} are the same ({medians})."
    sure = between(row.ratio_interval)
    confidence = percent(row.ratio_interval.confidence, 2) if row.ratio_interval is not None else ""
    limits = f"; if there is one, it lies {sure} with {confidence} confidence" if sure else ""
    needed = f". {row.needed} runs of each would be needed {row.needed_why}" if row.needed is not None else ""
    return f"{what}: no difference between {row.setup} and {row.base} is shown ({medians}){limits}{needed}."


def variance(row: facts.Variance) -> str:
    """Return what a row of the table of variances means."""
    which = "any two runs" if row.way == "any two runs" else "the two runs of a pair"
    head = f"{row.evaluation} in {row.setup}, between {which}:"
    comparisons = _comparisons(row)
    if row.zero:
        return f"{head} {nothing_varies(comparisons)}{_left_open(row, comparisons)}."
    if not comparisons:
        return f"{head} no two runs can be compared."
    parts = []
    if row.accuracy is not None and row.accuracy.largest is not None:
        parts.append(f"the accuracy differs by up to {points(row.accuracy.largest)} percentage points")
    if row.class_largest:
        parts.append(f"that of class {row.class_label} by up to {points(row.class_largest)}")
    if row.inconsistent is not None:
        share = row.inconsistent.largest / row.inconsistent.predictions if row.inconsistent.predictions else 0.0
        which = (
            f"up to {row.inconsistent.largest} of {row.inconsistent.predictions} predictions ({percent(share)}) differ"
        )
        parts.append(which)
    if row.mae is not None and row.mae.largest is not None:
        parts.append(f"the mean absolute error differs by up to {number(row.mae.largest)}")
    return f"{head} {', '.join(parts) or 'something differs that cannot be measured'}{_further(row)}."


def _comparisons(row: facts.Variance) -> int:
    """Return how many comparisons of two runs most of the measures have."""
    parts = (row.accuracy, row.mae, row.inconsistent, *(one.spread for one in row.classes))
    return max((part.comparisons for part in parts if part is not None), default=0)


def _left_open(row: facts.Variance, comparisons: int) -> str:
    """Return how many further runs may differ although these were equal; only pairs are independent."""
    independent = comparisons if row.way == "within pairs" else row.runs - 1
    which = "pairs" if row.way == "within pairs" else "runs"
    if independent < 1:
        return ""
    bound = statistics.share(0, independent).interval.high or 0.0
    return f"; with 95 % confidence no more than {percent(bound, 2)} of further {which} would differ"


def _further(row: facts.Variance) -> str:
    """Return how reliable the observed range is."""
    if row.way != "any two runs" or row.runs < 2:
        return ""
    chance = percent(statistics.beyond_range(row.runs), 2)
    return f"; one more run lies outside that range with a chance of up to {chance}"


def process(row: facts.ProcessVariance) -> str:
    """Return what a row of the table of metrics through the run means."""
    which = "any two runs" if row.way == "any two runs" else "the two runs of a pair"
    where = f"at the last {row.by} that {'all' if row.way == 'any two runs' else 'both'} have"
    head = f"{row.metric} in {row.setup}, between {which}, {where}:"
    notes = f" ({'; '.join(row.notes)})" if row.notes else ""
    if not row.spread.comparisons:
        return f"{head} no two values can be compared{notes}."
    if not row.spread.largest:
        return f"{head} {nothing_varies(row.spread.comparisons)}{notes}."
    return f"{head} up to {number(row.spread.largest)}{notes}."


# ---- a sentence a table ----------------------------------------------------------------------------------------------


def all_pairs(setups: Sequence[tuple[str, facts.PairCounts]]) -> str:
    """Return the table of pairs in a sentence or two."""
    compared = [(name, counts.differing) for name, counts in setups if counts.differing is not None]
    if not compared:
        return "No pair could be compared, so nothing is known about whether runs repeat."
    same = [name for name, share in compared if share.count == 0]
    other = [name for name, share in compared if share.count]
    sentences = []
    if same:
        most = max(share.interval.high or 0.0 for _, share in compared if share.count == 0)
        sentences.append(f"{every_pair_was(_listed(same))}; with 95 % confidence no more than {percent(most, 2)}")
        sentences[-1] += f" of further pairs of {'it' if len(same) == 1 else 'each'} would differ"
        needed = statistics.pairs_to_exclude(FEW)
        sentences[-1] += f" ({needed} equal pairs would bring that below {percent(FEW)})." if most > FEW else "."
    if other:
        sentences.append(f"Pairs of {_listed(other)} differed.")
    return " ".join(sentences)


def all_overheads(rows: Sequence[facts.Overhead]) -> str:
    """Return the table of overheads in a sentence or two."""
    times = [row for row in rows if row.measure == "time"]
    if not times:
        return "No two setups of one training are there that could be compared in time and storage."
    sentences = []
    for finding, words in (("more", "more"), ("less", "less")):
        comparisons = [f"in {row.setup} than in {row.base}" + _about(row) for row in times if row.finding == finding]
        if comparisons:
            sentences.append(f"Runs are shown to take {words} time {_listed(comparisons)}.")
    none = [f"{row.setup} and {row.base}" for row in times if row.finding == "no difference shown"]
    if none:
        sentences.append(
            f"No difference in time is shown between {_listed(none, ';')}: that does not mean that there is none."
        )
    few = [row.needed for row in times if row.finding == "too few runs" and row.needed is not None]
    if few:
        which = "One comparison has" if len(few) == 1 else f"{len(few)} comparisons have"
        sentences.append(f"{which} too few runs to tell anything; {max(few)} of each setup are needed.")
    if any(row.finding == "not comparable" for row in times):
        sentences.append("Runs were made at the same time: their times cannot be compared.")
    return " ".join(sentences)


def _about(row: facts.Overhead) -> str:
    return f" (about {change(row.ratio)})" if row.ratio is not None else ""


def all_variances(rows: Sequence[facts.Variance]) -> str:
    """Return the table of variances in a sentence or two."""
    if not rows:
        return "No run was evaluated, so nothing can be said about predictions and accuracy."
    accuracy = _by_source(rows, lambda row: row.accuracy, lambda value: f"{points(value)} percentage points")
    error = _by_source(rows, lambda row: row.mae, number)
    sentences = []
    if accuracy:
        sentences.append(f"Largest difference of accuracy between runs, by what is left to vary: {accuracy}.")
    if error:
        sentences.append(f"Largest difference of mean absolute error, by what is left to vary: {error}.")
    varying = {row.setup for row in rows if not row.zero}
    zero = [setup for setup in dict.fromkeys(row.setup for row in rows) if setup not in varying]
    if zero:
        sentences.append(nothing_varies_in(_listed(zero)))
    return " ".join(sentences) or "No two runs have a score that could be compared."


def _by_source(
    rows: Sequence[facts.Variance],
    spread: Callable[[facts.Variance], facts.Spread | None],
    shown: Callable[[float | None], str],
) -> str:
    """Return the largest difference of each source, and in which setup, of which evaluation."""
    is_only = len({row.evaluation for row in rows}) == 1
    worst: dict[facts.Source, tuple[float, str]] = {}
    for row in rows:
        range_of_values = spread(row)
        if range_of_values is not None and range_of_values.largest is not None:
            name = row.setup if is_only else f"{row.setup}, {row.evaluation}"
            worst[row.source] = max(
                worst.get(row.source, (-1.0, "")), (range_of_values.largest, name), key=itemgetter(0)
            )
    parts = [
        f"{words} {shown(worst[source][0])} ({worst[source][1]})"
        for source, words in facts.SOURCES.items()
        if source in worst
    ]
    return ", ".join(parts)


def all_processes(rows: Sequence[facts.ProcessVariance]) -> str:
    """Return the table of metrics through the run in a sentence or two."""
    if not rows:
        return "No run told of a metric, so nothing can be said about its course."
    short = list(dict.fromkeys(row.setup for row in rows if row.lengths[0] != row.lengths[1]))
    sentences = ["Each row is the last value that the compared runs have in common."]
    if short:
        sentences.append(
            f"Runs of {_listed(short)} are of different length, and were compared as far as both or all go."
        )
    return " ".join(sentences)


def _listed(names: Sequence[str], separator: str = ",") -> str:
    if len(names) < 2:
        return "".join(names)
    if len(names) > MAX_LISTED:
        names = [*names[: MAX_LISTED - 1], f"{len(names) - MAX_LISTED + 1} more"]
    return f"{f'{separator} '.join(names[:-1])}{separator if separator == ';' else ''} and {names[-1]}"
