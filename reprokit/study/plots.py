"""Draws the plots of a study: times of all runs, variation by source, and metrics over steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from reprokit.core.pages import drawing
from reprokit.core.pages.drawing import Axis, Place, axis
from reprokit.study.analysis import thinned
from reprokit.study.facts import SOURCES, Analysis, AttemptFacts, Curve, CurveLine, SetupFacts, Source, Spread, Variance
from reprokit.study.wording import number, points, quantity

WIDTH: Final = 720
NAMES: Final = 176  # width of setup names in pixels
LONGEST_NAME: Final = 25  # characters that fit into NAMES
ROW: Final = 46  # height of the row of a setup in pixels
SPREAD: Final = 15  # maximum vertical offset in pixels of points with equal times
APART: Final = 4.5  # minimum distance in pixels of two points
BAR: Final = 22
LEAST_NOTCHED: Final = 16  # minimum width in pixels of a bar with a visible notch
PANEL: Final = (340, 190)
FINE: Final = 10  # coordinates per pixel, so that paths consist of short integers
MANY: Final = 32  # lines in a panel from which they are thin and translucent
MAX_SETUPS: Final = 40  # setups per plot
MAX_PANELS: Final = 24  # panels per metric
MAX_BARS: Final = 60
MAX_EVALUATIONS: Final = 4
MAX_METRICS: Final = 6
BUDGET: Final = 130_000  # points in all paths of a page: less than 1 MiB


@dataclass(frozen=True)
class Plot:
    """A drawing, and the scales that a reader needs."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Panels:
    """A metric in all setups: a drawing each, with the same axes."""

    title: str
    plots: list[Plot]
    caption: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


# ---- times -----------------------------------------------------------------------------------------------------------


def times(analysis: Analysis) -> Plot | None:
    """Return a plot of the time of each run, with a box from quartile to quartile."""
    timed = [item for item in analysis.setups if item.seconds.count]
    setups = timed[:MAX_SETUPS]
    if not setups:
        return None
    runs: dict[str, list[AttemptFacts]] = {item.name: [] for item in setups}
    for run in analysis.runs:
        if run.outcome == "finished" and run.seconds is not None and run.setup in runs:
            runs[run.setup].append(run)
    bottom = ROW * len(setups) + 8
    across = axis([run.seconds or 0.0 for here in runs.values() for run in here], NAMES + 10, WIDTH - 16)
    body = [*_across(across, bottom, lambda value: f"{value:g} s")]
    for row, setup in enumerate(setups):
        body += _strip(setup, runs[setup.name], across, ROW * row + ROW / 2 + 4)
    description = "; ".join(f"{item.name}: {_spoken(item)}" for item in setups)
    more = f" {len(timed) - len(setups)} more setups are in the table below." if len(timed) > len(setups) else ""
    caption = (
        "Each point is a run: round the first of a pair (or the recording), square the second (or the replay). The box "
        "reaches from quartile to quartile, the bar in it is the median, the thin line reaches from the shortest to "
        f"the longest run. The axis begins at the shortest of all, not at 0.{more}"
    )
    svg = drawing.drawing((WIDTH, bottom + 34), "times", "Time of each run, by setup", description, body)
    return Plot("Time of each run", svg, caption)


def _spoken(setup: SetupFacts) -> str:
    times = setup.seconds
    texts = [quantity(value, "s") for value in (times.median, times.least, times.most)]
    return f"median {texts[0]}, from {texts[1]} to {texts[2]}"


def _across(across: Axis, bottom: float, shown: Callable[[float], str]) -> Iterator[str]:
    marks = [across.place(mark) for mark in across.marks(7)]
    yield drawing.path("grid", "".join(f"M{x:.1f} 4V{bottom}" for x in marks))
    yield drawing.path("axis", f"M{across.start:g} {bottom}H{across.end:g}")
    for mark, x in zip(across.marks(7), marks, strict=True):
        yield drawing.text((round(x, 1), bottom + 16), shown(mark), "middle")


def _strip(setup: SetupFacts, runs: Sequence[AttemptFacts], across: Axis, middle: float) -> Iterator[str]:
    times = setup.seconds
    yield drawing.text((NAMES, middle + 4), drawing.fitting(setup.name, LONGEST_NAME), "end", "name")
    least, low, median, high, most = (
        round(across.place(value or 0.0), 1)
        for value in (times.least, times.low_quartile, times.median, times.high_quartile, times.most)
    )
    if times.count > 2:
        yield drawing.path("whisker", f"M{least} {middle}H{low}M{high} {middle}H{most}")
        yield drawing.path("box", f"M{low} {middle - SPREAD}H{high}V{middle + SPREAD}H{low}z")
    yield drawing.path("median", f"M{median} {middle - SPREAD}V{middle + SPREAD}")
    places = dict(_spread_vertically(runs, across, middle))
    for part in ("first", "second"):
        yield drawing.points((place for run, place in places.items() if runs[run].part == part), f"dot {part}")


def _spread_vertically(runs: Sequence[AttemptFacts], across: Axis, middle: float) -> Iterator[tuple[int, Place]]:
    """Yield the position of each run; runs with nearly equal times are spread vertically."""
    taken: dict[int, int] = {}
    for position, run in enumerate(runs):
        x = across.place(run.seconds or 0.0)
        column = round(x / APART)
        before = taken[column] = taken.get(column, -1) + 1
        steps = int(SPREAD / APART)
        step = (before + 1) // 2 % (steps + 1)
        yield position, (x, middle + APART * (step if before % 2 else -step))


# ---- what varies -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bar:
    """The range of one score over the runs of a setup."""

    source: Source
    setup: str
    largest: float
    deviation: float | None
    words: str


def _inconsistent(row: Variance) -> _Bar | None:
    found = row.inconsistent
    if found is None:
        return None
    about = "about " if found.sampled else ""
    words = f"{about}{found.largest} of {found.predictions}" if found.largest else "0"
    return _Bar(row.source, row.setup, found.largest, found.deviation, words + _in_brackets(found.deviation, number))


def _spread(row: Variance, spread: Spread | None, shown: Callable[[float | None], str]) -> _Bar | None:
    return None if spread is None else _largest(row, spread.largest, spread.deviation, shown)


def _largest(
    row: Variance, largest: float | None, deviation: float | None, shown: Callable[[float | None], str]
) -> _Bar | None:
    if largest is None:
        return None
    return _Bar(row.source, row.setup, largest, deviation, shown(largest) + _in_brackets(deviation, shown))


def _in_brackets(deviation: float | None, shown: Callable[[float | None], str]) -> str:
    return f" ({shown(deviation)})" if deviation else ""


SCORES: Final[tuple[tuple[str, Callable[[Variance], _Bar | None]], ...]] = (
    ("accuracy, in percentage points", lambda row: _spread(row, row.accuracy, points)),
    (
        "accuracy of the class that varies most, in percentage points",
        lambda row: _largest(row, row.class_largest, row.class_deviation, points),
    ),
    ("inconsistent predictions", _inconsistent),
    ("mean absolute error", lambda row: _spread(row, row.mae, number)),
)


def variances(analysis: Analysis) -> tuple[list[Plot], int]:
    """Return a plot for each score of each evaluation, and how many evaluations are left out."""
    names = list(dict.fromkeys(row.evaluation for row in analysis.variance))
    order = list(SOURCES)
    plots: list[Plot] = []
    for name in names[:MAX_EVALUATIONS]:
        rows = sorted((row for row in analysis.variance if row.evaluation == name), key=lambda r: order.index(r.source))
        for score, bar in SCORES:
            bars = [found for found in map(bar, rows) if found is not None]
            if bars:
                plots.append(_bars(f"variance{len(plots)}", name, score, bars))
    return plots, max(0, len(names) - MAX_EVALUATIONS)


def _bars(ident: str, evaluation: str, score: str, found: Sequence[_Bar]) -> Plot:
    bars = found[:MAX_BARS]
    across = Axis(0.0, max(bar.largest for bar in bars) or 1.0, NAMES + 10, WIDTH - 130)
    body: list[str] = []
    y = 0
    for source, group in groupby(bars, key=lambda bar: bar.source):
        y += BAR + 4
        body.append(drawing.text((8, y - 6), SOURCES[source].capitalize(), kind="source"))
        listed = list(group)
        body.append(drawing.path("axis", f"M{across.start:g} {y}v{BAR * len(listed)}"))
        for bar in listed:
            body += _bar(bar, across, y)
            y += BAR
    told = "; ".join(f"{bar.setup} ({SOURCES[bar.source]}): {bar.words}" for bar in bars)
    more = f"{len(found) - len(bars)} more setups are in the table below." if len(found) > len(bars) else ""
    title = f"{drawing.fitting(evaluation, 80)}: {score}"
    svg = drawing.drawing((WIDTH, y + 8), ident, f"Largest difference between runs of {title}", told, body)
    return Plot(title, svg, more)


def _bar(bar: _Bar, across: Axis, y: int) -> Iterator[str]:
    yield drawing.text((NAMES, y + 15), drawing.fitting(bar.setup, LONGEST_NAME), "end", "name")
    end = round(across.place(bar.largest), 1)
    if bar.largest > 0:
        end = max(end, across.start + 2)
        kind = f"bar {bar.source.split()[0]}"
        yield drawing.path(kind, f"M{across.start:g} {y + 3}H{end:g}V{y + BAR - 3}H{across.start:g}z")
    if bar.deviation and end > across.start + LEAST_NOTCHED:
        x = round(across.place(min(bar.deviation, bar.largest)), 1)
        yield drawing.path("deviation", f"M{x} {y + 1}V{y + BAR - 1}")
    yield drawing.text((end + 8, y + 15), bar.words, kind="value")


# ---- courses of metrics ----------------------------------------------------------------------------------------------


def courses(analysis: Analysis) -> list[Panels]:
    """Return panels per metric with the lines of all runs, one panel per setup."""
    shown = [curve for curve in analysis.curves if _places(curve.lines)][:MAX_METRICS]
    order = {setup.name: position for position, setup in enumerate(analysis.setups)}
    most = BUDGET // max(1, sum(len(curve.lines) for curve in shown))
    return [_panels(number, curve, order, max(12, most)) for number, curve in enumerate(shown)]


def _places(lines: Sequence[CurveLine]) -> list[tuple[int, float]]:
    return [(at, value) for line in lines for at, value in line.points if value is not None]


def _panels(ident: int, curve: Curve, order: dict[str, int], most: int) -> Panels:
    width, height = PANEL
    everywhere = _places(curve.lines)
    across = axis([at for at, _ in everywhere], 48, width - 10)
    up = axis([value for _, value in everywhere], height - 26, 10, may_be_logarithmic=True)
    ordered = sorted(curve.lines, key=lambda line: order.get(line.setup, len(order)))
    by_setup = [(setup, list(lines)) for setup, lines in groupby(ordered, key=lambda line: line.setup)]
    plots = [
        _panel(f"course{ident}-{position}", curve, setup, lines, (across, up), most)
        for position, (setup, lines) in enumerate(by_setup[:MAX_PANELS])
    ]
    left_out = [f"{curve.left_out} more runs are not drawn."] if curve.left_out else []
    if len(by_setup) > MAX_PANELS:
        left_out.append(f"{len(by_setup) - MAX_PANELS} more setups are in the table only.")
    scale = "The vertical axis is logarithmic." if up.logarithmic else ""
    heads = ("setup", "runs", f"{curve.by}s", "not finite", "first value", "last value")
    rows = [_course(setup, lines) for setup, lines in by_setup]
    return Panels(f"{curve.metric}, by {curve.by}", plots, " ".join([*left_out, scale]).strip(), heads, rows)


def _panel(
    ident: str, curve: Curve, setup: str, lines: Sequence[CurveLine], axes: tuple[Axis, Axis], most: int
) -> Plot:
    across, up = axes
    body = [*_frame(across, up, curve.by)]
    for part in ("first", "second"):
        drawn = dict.fromkeys(_drawn(line, axes, most) for line in lines if line.part == part)  # equal ones once
        many = ' class="many"' if len(lines) > MANY else ""
        paths = "".join(drawing.path(part, course) for course in drawn)
        body.append(f'<g transform="scale({1 / FINE:g})"{many}>{paths}</g>')
    _, runs, values, _, first, last = _course(setup, lines)
    told = f"{runs} runs of {values} {curve.by}s; the first value {first}, the last {last}"
    name = drawing.fitting(setup, 34)
    return Plot(name, drawing.drawing(PANEL, ident, f"{curve.metric} in {setup}", told, body))


def _frame(across: Axis, up: Axis, unit: str) -> Iterator[str]:
    marks = [mark for mark in up.marks(4) if up.low <= mark <= up.high]
    yield drawing.path("grid", "".join(f"M{across.start:g} {up.place(mark):.1f}H{across.end:g}" for mark in marks))
    yield drawing.path("axis", f"M{across.start:g} {up.end:g}V{up.start:g}H{across.end:g}")
    for mark in marks:
        yield drawing.text((across.start - 5, round(up.place(mark) + 4, 1)), f"{mark:.4g}", "end")
    yield drawing.text((across.start, up.start + 16), f"{unit} {across.low:g}")
    if across.high > across.low:
        yield drawing.text((across.end, up.start + 16), f"{across.high:g}", "end")


def _drawn(line: CurveLine, axes: tuple[Axis, Axis], most: int) -> str:
    """Return the path of a line in tenths of pixels, with gaps at values that are not finite."""
    across, up = axes
    course, before = "", None
    for at, value in thinned(line.points, most):
        if value is None:
            before = None
            continue
        here = round(FINE * across.place(at)), round(FINE * up.place(value))
        if before is None:
            course += f"M{here[0]} {here[1]}h0"
        elif here != before:
            course += f"l{here[0] - before[0]} {here[1] - before[1]}".replace(" -", "-")
        before = here
    return course


def _course(setup: str, lines: Sequence[CurveLine]) -> tuple[str, ...]:
    """Return the last values of a setup's lines, as text for readers who cannot see the drawing."""
    finite = [[value for _, value in line.points if value is not None] for line in lines]
    firsts, lasts = ([values[end] for values in finite if values] for end in (0, -1))
    bad = sum(line.not_finite for line in lines)
    lengths = _from_to([line.values for line in lines])
    return setup, str(len(lines)), lengths, str(bad), _from_to(firsts), _from_to(lasts)


def _from_to(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = (f"{one:.6g}" for one in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
