"""The audit facts: what a reader who never saw the training must know of a run, and of a re-run, as data.

Presenters add nothing to it and leave nothing out but for length. `report.schema.json` is the schema of it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FORMAT: Final = 2

NOT_COMPARED: Final = "not-compared"  # one run alone, or nothing in two that can be compared

Outcome = Literal["identical", "different", "tolerated", "failed", "not-compared"]  # failed: equal, but not completed
ExecutedBy = Literal["signer", "unknown"]  # the process that made this, or nobody that it knows of
Judgment = Literal[
    "identical",
    "bookkeeping",
    "different",
    "tolerated",
    "missing",
    "ignored",
    "information",
    "not-recorded",
    "not-compared",
]


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that was compared, or that is only stated: of the first run and, where there is one, the second."""

    name: str
    verdict: Judgment
    left: str = ""
    right: str = ""
    detail: str = ""
    can_change_results: bool = False


class Category(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Things of a kind, in causal order among the others."""

    name: str
    verdict: Judgment
    summary: str  # one sentence
    items: tuple[Item, ...] = ()


class ReportVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came out, in a word and in sentences."""

    outcome: Outcome
    sentence: str
    counts: dict[str, int] = {}  # of things that were compared each by itself, by what came out
    first_difference: str = ""
    causes: tuple[str, ...] = ()  # of the surroundings, what can be why


class Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fact with its name."""

    name: str
    value: str


class IgnoredDifferences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was declared that it may differ, and how many differences that covered."""

    option: str
    rule: str
    origin: str  # the file that declares it, or the command line
    times: int


class SourceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the git checkout in which a run was executed."""

    state: Literal["clean", "changed", "unknown"] = "unknown"
    commit: str = ""
    repository: str = ""  # where the checkout comes from, without credentials
    changes: str = ""  # digest of what the commit does not say: the diff, and other files by their digests
    changed_files: tuple[str, ...] = ()  # that were used, with other bytes than in the commit
    outside_files: tuple[str, ...] = ()  # of code that was used, and that the commit lacks
    same_files: int = 0  # number of those that were used as the commit has them
    not_compared: int = 0  # number of those that were used and not compared


class RunReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of one run."""

    side: Literal["left", "right"]
    run_id: str
    kind: Literal["recording", "replay"]
    path: str
    state: str  # how it ended, or that it has not
    whole: bool  # False: in progress, or it did not come to its end
    command: tuple[str, ...]
    working_directory: str
    started: str
    ended: str
    seconds: float | None
    host: str
    reprokit: str
    machine: str = ""
    source: SourceState = SourceState()
    replay_of: str = ""  # run id of the recording that it is a replay of
    digest: str = ""  # of run.json: what this report speaks of
    outliving: int = 0  # processes that still ran when the run was closed
    original: str = ""  # of run.json before the run was packed, where it came in a bundle


class CurvePoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A value of a curve; none where it is not finite."""

    step: int
    value: float | None


class MetricCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric over the steps of both runs, thinned out by the extremes of what lies together."""

    name: str
    unit: str  # "step" or "epoch"
    left: tuple[CurvePoint, ...]
    right: tuple[CurvePoint, ...]
    difference: tuple[CurvePoint, ...] = ()  # second run minus first, where steps are the same and values are not
    values: tuple[int, int]  # how many there were in each run
    not_finite: tuple[int, int]


class EntropyAsker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asked for entropy."""

    module: str
    call: str  # the function, or the offset in the module
    source: str
    requests: int
    bytes: int
    withheld: int


class EntropyPurpose(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a library asked entropy for, which is inferred from its name and the size of its requests."""

    library: str
    purpose: str
    requests: int
    bytes: int
    withheld: int  # requests of cryptographic libraries, whose bytes are not kept


class Entropy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The randomness of the run: who asked, how much, and how much of it a replay was given again."""

    profile: str  # digest of the random profile
    keyed: bool
    requests: int
    bytes: int
    processes: int
    threads: int
    withheld: int
    purposes: tuple[EntropyPurpose, ...] = ()  # the most bytes first
    askers: tuple[EntropyAsker, ...]
    askers_left_out: int
    fidelity: dict[str, int] | None  # of the replay, by kind of answer
    fidelity_sentence: str
    proof: str  # what strace saw beside the run; empty where there was none
    uncovered: tuple[str, ...]

    @property
    def exactly_answered(self) -> float | None:
        """The share of the replay's requests that were answered exactly; None without a replay."""
        if not self.fidelity:
            return None
        asked = sum(self.fidelity[kind] for kind in ("exact", "moved", "derived", "live"))
        return self.fidelity["exact"] / asked if asked else 1.0


class ReportedFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile found, and what is known to help."""

    subject: str
    verdict: str
    why: str
    where: str
    cures: tuple[str, ...]


class ConfusionMatrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often each class was predicted, by the class that was true."""

    title: str  # of which labels, and when
    classes: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]  # a row for each true class
    left_out: int  # samples of further classes


class AppliedPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that the run applied from outside the source."""

    name: str
    state: str
    why: str
    warnings: tuple[str, ...]


class Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package of the training's environment."""

    name: str
    version: str
    imported: bool  # by the training


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that the first run wrote."""

    path: str
    size: int
    digest: str  # "sha256:...", or empty where it was not read


class Trained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run was made of."""

    command: str
    code: tuple[Stated, ...]  # commit, digests of files
    data: tuple[Stated, ...]
    seeds: tuple[str, ...]  # seeding calls of the script with their arguments
    variables: tuple[str, ...] = ()  # of the environment, that the script read
    recipe: str


class WrongPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample that was predicted as another class."""

    step: int
    batch: int  # of an evaluation
    sample: int  # place in its batch
    label: int
    prediction: int
    picture: str  # PNG in base64, empty where no image was saved


class TensorHistogram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the values of a saved tensor spread, step by step."""

    name: str
    steps: tuple[int, ...]
    low: float  # of all steps
    high: float
    counts: tuple[tuple[int, ...], ...]  # for each step, of bins of one width from low to high
    not_finite: int


class AuditFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a report says, in the order in which it says it."""

    format: Literal[2] = FORMAT
    reprokit: str  # the version that gathered it
    made: str  # ISO 8601, UTC
    executed_by: ExecutedBy  # who executed the runs, as far as the maker of this report knows
    attention: tuple[str, ...]  # what must be read before the verdict
    verdict: ReportVerdict
    runs: tuple[RunReport, ...]
    trained: Trained
    compared_how: tuple[str, ...]
    excluded: tuple[str, ...]
    ignored: tuple[IgnoredDifferences, ...] = ()
    notes: tuple[str, ...]
    categories: tuple[Category, ...]
    outputs: tuple[Output, ...]
    curves: tuple[MetricCurve, ...]
    curves_left_out: int
    confusion: tuple[ConfusionMatrix, ...] = ()  # of the first run, where it saved labels and predictions
    wrong_predictions: tuple[WrongPrediction, ...] = ()  # the first of these samples
    histograms: tuple[TensorHistogram, ...] = ()  # of the first run, of tensors that it saved
    histograms_left_out: int = 0
    entropy: Entropy
    findings: tuple[ReportedFinding, ...]
    findings_note: str
    resumption: tuple[str, ...] = ()  # how the training resumed, where it was interrupted as well
    divergence: tuple[str, ...] = ()  # the first operator that gave another result, where it was looked for
    patches: tuple[AppliedPatch, ...]
    environment: tuple[Item, ...]
    packages: tuple[Package, ...]
    limits: tuple[str, ...]
    check_it: tuple[Stated, ...]  # what to do, and the command that does it

    @property
    def digests(self) -> tuple[Item, ...]:
        """Return the artifacts of the training by digest: weights and outputs."""
        names = ("weights", "outputs")
        return tuple(item for category in self.categories if category.name in names for item in category.items)
