"""What the runs of a study say, as data: presenters add nothing to it and compute nothing.

`study-1.schema.json` is the schema of it. Numbers that are not finite are null; a word beside them says why.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FORMAT: Final = 1

Kind = Literal["untouched", "bare", "seeded", "patched", "seeded and patched", "recorded", "patched and recorded"]
Controls = Literal["", "software", "hardware", "both"]
Source = Literal["both", "software", "hardware", "ours", "left by seeds"]  # what is left to vary; see SOURCES
Magnitude = Literal["negligible", "small", "medium", "large", ""]
Finding = Literal["more", "less", "no difference shown", "too few runs", "not comparable"]
Effect = Literal[
    "all of it",  # anything against untouched
    "watching alone",  # observed against untouched
    "seeds alone",  # this and what follows: against bare
    "patches alone",
    "record-and-replay alone",
    "record-and-replay with patches",
    "seeds with patches",
    "record-and-replay beyond patches",  # both against patches alone
]
Measure = Literal["time", "processor time", "storage"]

SOURCES: Final[dict[Source, str]] = {
    "both": "software and hardware",
    "software": "software",
    "hardware": "hardware",
    "left by seeds": "what seeds leave",
    "ours": "what record-and-replay leaves",
}


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of a value, with a confidence level that was reached exactly or nearly."""

    low: float | None  # None: no bound
    high: float | None
    confidence: float  # 0.95: of a hundred such intervals about 95 hold the value
    method: str


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A count out of a total."""

    count: int
    of: int
    interval: Interval  # of the share that many more would have; exact binomial


class ValueSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A summary of one quantity over several runs."""

    count: int
    left_out: int  # that are not finite, or that a run lacks
    median: float | None
    low_quartile: float | None
    high_quartile: float | None
    least: float | None
    most: float | None
    mean: float | None
    deviation: float | None  # standard deviation of a sample; None of fewer than two


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, as the page lists and plots it."""

    setup: str
    pair: int
    part: Literal["first", "second"]
    mode: str
    seed: int | None
    outcome: Literal["finished", "failed", "timeout", "lost"]
    ended: str
    started: str
    seconds: float | None
    processor: float | None
    memory: int | None
    stored: int
    profile: int
    epochs: int | None
    accuracy: float | None  # of the setup's main evaluation
    mae: float | None
    host: str
    worker: str
    together: int
    notes: tuple[str, ...] = ()


class PairFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The comparison of two runs of a setup."""

    setup: str
    pair: int
    outcome: Literal["identical", "different", "not compared"]
    process: Literal["equal", "different", "not compared"]
    evaluation: Literal["equal", "different", "not compared"]
    words: str
    categories: tuple[str, ...] = ()
    inconsistent: int | None = None
    predictions: int | None = None
    accuracy_difference: float | None = None
    largest_class_difference: float | None = None
    mae_difference: float | None = None
    lengths: tuple[int, int] | None = None  # epochs (else steps) of the longest metric, where the two differ
    equal_until: int | None = None  # so many values of the first metric that differs are equal
    notes: tuple[str, ...] = ()


class PairCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The counts of a setup's pairs by their outcome."""

    planned: int
    made: int
    identical: int
    different: int
    not_compared: int
    process_equal: int
    process_different: int
    process_not_compared: int
    evaluation_equal: int
    evaluation_different: int
    evaluation_not_compared: int
    differing: Share | None  # of the pairs that were compared; None where none was
    sentence: str


class SetupFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A setup, and the results of its runs."""

    name: str
    kind: Kind
    controls: Controls
    source: Source
    words: str  # what it does, in a sentence
    command: tuple[str, ...]
    patches: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: int  # runs
    finished: int
    failed: int  # failed, timed out or lost
    seconds: ValueSummary
    processor: ValueSummary
    memory: ValueSummary
    stored: ValueSummary
    profile: ValueSummary
    recording: ValueSummary | None  # seconds of the recordings alone, where the second runs are replays
    replaying: ValueSummary | None
    pairs: PairCounts


class Overhead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of a setup compared with another one."""

    effect: Effect
    measure: Measure
    unit: str  # "s" or "B"
    setup: str
    base: str
    runs: tuple[int, int]  # of the setup, of the base
    median: float | None
    base_median: float | None
    difference: float | None  # Hodges-Lehmann: the median of all differences of a run and a run of the base
    difference_interval: Interval | None
    ratio: float | None  # the same on logarithms: the median of all ratios; None where something is not above 0
    ratio_interval: Interval | None
    p: float | None  # Wilcoxon's rank-sum test, two-sided
    p_method: str
    p_adjusted: float | None  # by Holm, over all rows of this table
    delta: float | None  # Cliff's: above 0 where the setup's runs have the larger values
    magnitude: Magnitude
    finding: Finding
    needed: int | None  # runs of each that would be needed to tell, where these do not
    needed_why: str
    sentence: str


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distance of values of runs that might have been equal."""

    comparisons: int  # of two runs
    largest: float | None  # difference of two of them
    deviation: float | None
    differing: int  # comparisons whose two values are not equal
    left_out: int  # values that are not finite


class ClassSpread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spread of the accuracy of one class."""

    label: str
    spread: Spread


class Inconsistent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of predictions on which two runs differ."""

    comparisons: int
    predictions: int  # of each run, of the ones that were compared
    largest: int
    mean: float
    deviation: float | None
    sampled: bool  # not all pairs of runs were compared, as there are too many


class Variance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The variation between the runs of a setup in one evaluation, and its sources."""

    source: Source
    setup: str
    evaluation: str
    task: Literal["classification", "regression"]
    way: Literal["any two runs", "within pairs"]  # which two are compared
    runs: int  # that have this evaluation
    missing: int  # finished runs that do not have it
    accuracy: Spread | None
    class_largest: float | None  # over all classes
    class_deviation: float | None
    class_label: str  # of the largest
    classes: tuple[ClassSpread, ...]  # with the largest differences
    classes_left_out: int
    inconsistent: Inconsistent | None
    mae: Spread | None
    zero: bool  # nothing in it differs between any two that were compared
    notes: tuple[str, ...]
    sentence: str


class ProcessVariance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The variation of one training metric between the runs of a setup, at the last step or epoch that all reach."""

    source: Source
    setup: str
    metric: str
    by: Literal["epoch", "step"]
    way: Literal["any two runs", "within pairs"]
    runs: int
    missing: int  # finished runs that do not have it
    lengths: tuple[int, int]  # of the shortest and the longest run
    at: int  # the last value that all have, from 1
    spread: Spread
    notes: tuple[str, ...]
    sentence: str


class CurveLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric through one run, thinned to the extremes of each stretch; null where not finite."""

    setup: str
    pair: int
    part: Literal["first", "second"]
    points: tuple[tuple[int, float | None], ...]
    values: int
    not_finite: int


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric through all runs."""

    metric: str
    by: Literal["epoch", "step"]
    lines: tuple[CurveLine, ...]
    left_out: int  # lines


class Sentences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence for each table, for a reader without statistics."""

    pairs: str
    overhead: str
    variance: str
    process: str


class Analysis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All facts of a study, in the order in which they are presented."""

    format: Literal[1] = FORMAT
    reprokit: str
    made: str  # ISO 8601, UTC
    name: str
    command: tuple[str, ...]
    planned: int  # runs
    runs_made: int
    attention: tuple[str, ...]  # what must be read before the tables
    verdicts: tuple[str, ...]  # the study in sentences
    sentences: Sentences
    methods: tuple[str, ...]  # how figures were computed, and what they assume
    setups: tuple[SetupFacts, ...]
    overhead: tuple[Overhead, ...]
    variance: tuple[Variance, ...]
    process: tuple[ProcessVariance, ...]
    process_left_out: int
    pairs: tuple[PairFacts, ...]
    runs: tuple[AttemptFacts, ...]
    curves: tuple[Curve, ...]
    curves_left_out: int
    host: dict[str, str]
