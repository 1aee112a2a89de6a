"""Makes all sentences that promise: identical, exact, proved, each once, nothing varies. No other module may.

Each is made from what was compared and what was not; that comes from the table of facts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from reprokit.core.difference import BookkeepingKind, Difference, Verdict
from reprokit.core.printable import listed
from reprokit.run_files.ledgers import BatchUse
from reprokit.verify.comparison import PRINTED_MORE, Comparison, HostsComparison, Level, only_added
from reprokit.verify.ignores import IgnoreUse, behind_verdict

if TYPE_CHECKING:
    from reprokit.model.resumption import OtherFact, ResumeFinding
    from reprokit.model.states import SwitchOption

NOT_BITWISE = "not bitwise identical; within the tolerance asked for"
NOT_KNOWN = "nothing that was compared differs, but both runs changed what could not be compared"
NOTHING_VARIES = "nothing varies"
EVERYTHING = "everything that was recorded and is compared is the same"

_LONG_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")


def shortened(text: str) -> str:
    """Return the text with shortened digests; --all and --json show them whole."""
    return _LONG_DIGEST.sub(r"\1...", text)


def sentence(leaf: Difference) -> str:
    """Return a leaf as a sentence."""
    if leaf.is_sentence:
        return leaf.detail
    values = f"{leaf.left or 'absent'} against {leaf.right or 'absent'}" if leaf.left or leaf.right else ""
    return ": ".join(filter(None, (leaf.name, values, leaf.detail)))


def counted_bookkeeping(counts: Counter[BookkeepingKind]) -> str:
    """Return the numbers of values that are bookkeeping, such as "3 durations and 1 directory name"."""
    words = [kind.counted(counts[kind]) for kind in BookkeepingKind if counts[kind]]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def verdict_line(comparison: Comparison) -> str:
    """Return the result of a comparison of two runs in one line, with how much the user's rules ignored."""
    return _verdict_words(comparison) + _behind(comparison, comparison.ignores)


def _behind(comparison: Comparison, ignores: Sequence[IgnoreUse]) -> str:
    """Return what qualifies a verdict: what was ignored, what was switched off, and processes that went on."""
    outliving = [run.run.outliving_processes for run in (comparison.left, comparison.right)]
    late = "; processes outlived the command, and what they wrote later is not compared" * any(outliving)
    added = [name for category in comparison.tree.children for name in only_added(category)]
    found = f"; of {listed(added, 1)} only what each run added is compared" if added else ""
    return behind_verdict(ignores) + found + switched_off_words(comparison.switched_off) + late


def switched_off_words(options: Sequence[SwitchOption]) -> str:
    """Return what is said behind a verdict of what no run recorded, as the user switched it off; may be empty."""
    return f"; switched off: {', '.join(option.option for option in options)}" if options else ""


def _both_failed(comparisons: Iterable[Comparison]) -> str:
    """Return that both runs failed, and how, to stand behind the first word; empty if they did not."""
    ends = [comparison.failures for comparison in comparisons]
    both = [left if left == right else f"{left} and {right}" for left, right in ends if left and right]
    return f", and both failed ({both[0]})" if both else ""


def _verdict_words(comparison: Comparison) -> str:
    first = comparison.tree.first()
    if first is not None:
        return f"different: {shortened(sentence(first))}"
    not_compared = comparison.tree.first_of(Verdict.NOT_COMPARED)
    if not_compared is not None:
        return f"not-compared: {NOT_KNOWN}, first {shortened(sentence(not_compared))}"
    tolerated = comparison.tree.first_tolerated()
    if tolerated is not None:
        failed = _both_failed([comparison])
        return f"tolerated{failed}: {NOT_BITWISE}; first {shortened(sentence(tolerated))}{_but_for([comparison])}"
    if comparison.shared is not None:
        return "identical: this is one run compared with itself, which proves nothing"
    causes = sum(1 for leaf in comparison.tree.leaves() if leaf.can_change_results)
    count = "one fact" if causes == 1 else f"{causes} facts"
    addition = f", although {count} could have changed it" if causes else ""
    but_for = _but_for([comparison])
    what = _compared(comparison) if but_for else EVERYTHING
    return f"identical{_both_failed([comparison])}: {what}, bit for bit{but_for}{addition}"


def several_line(first: object, verdicts: Sequence[Verdict], itself: int = 0) -> str:
    """Return in one line how further runs compare with the first; `itself` of them are the first one again."""
    counts = Counter(verdicts)
    if counts[Verdict.DIFFERENT]:
        number = counts[Verdict.DIFFERENT]
        return f"different: {number} of {len(verdicts)} runs {'differs' if number == 1 else 'differ'} from {first}"
    if counts[Verdict.IDENTICAL] == len(verdicts):
        others = len(verdicts) - itself
        if not others:
            return "identical: this is one run compared with itself, which proves nothing"
        again = f"; {itself} more compared it with itself, which proves nothing" if itself else ""
        return (
            f"identical: {'the run' if others == 1 else f'each of {others} runs'} with {first}, as its line says{again}"
        )
    words = (f"{count} {verdict.value}" for verdict, count in counts.items())
    return f"nothing differs from {first}, and of {len(verdicts)} runs are: {', '.join(words)}"


def hosts_line(result: HostsComparison) -> str:
    """Return the result of a comparison of runs on several hosts in one line."""
    if result.lacking:
        name, side = result.lacking[0]
        return f"different: the {side} run has no part of host {name}"
    name, comparison = next(item for item in result.hosts.items() if item[1].verdict is result.verdict)
    if result.verdict is Verdict.IDENTICAL:
        but_for = _but_for(result.hosts.values())
        what = _compared(comparison) if but_for else EVERYTHING
        failed, behind = _both_failed(result.hosts.values()), _behind(comparison, result.ignores)
        return f"identical{failed}: on each of {len(result.hosts)} hosts {what}{but_for}{behind}"
    return verdict_line(comparison).replace(": ", f": host {name}: ", 1)


def files_line(tree: Difference) -> str:
    """Return the result of a comparison of two files or directories in one line."""
    first = tree.first()
    if first is not None:
        return f"different: {sentence(first)}"
    tolerated = tree.first_tolerated()
    if tolerated is not None:
        return f"tolerated: {NOT_BITWISE}; first {sentence(tolerated)}"
    files = sum(1 for leaf in tree.leaves() if leaf.left != "directory")
    content = f"{files} files hold the same" if tree.children else tree.detail or "the same bytes"
    return f"identical: {content}"


def _but_for(comparisons: Iterable[Comparison]) -> str:
    """Return the bookkeeping that differs; empty if there is none."""
    counts: Counter[BookkeepingKind] = Counter()
    lines: list[Difference] = []  # that lead to printed lines
    for comparison in comparisons:
        counts.update(comparison.tree.bookkeeping())
        lines += [leaf for leaf in comparison.tree.leaves() if "printed_lines" in leaf.figures]
    number = sum(counts.values())
    if not number:
        return ""
    return f"; {counted_bookkeeping(counts)} differ{'s' if number == 1 else ''} (listed){_in_printed_lines(lines)}"


def _in_printed_lines(leaves: Sequence[Difference]) -> str:
    """Return in how many printed lines bookkeeping was left out, with the first of them."""
    if not leaves:
        return ""
    count = sum(leaf.figures["printed_lines"] for leaf in leaves)
    return f", left out of {count} printed line{'' if count == 1 else 's'}, first {leaves[0].figures['first_line']}"


def _compared(comparison: Comparison) -> str:
    """Return what was compared, by levels."""
    levels = comparison.levels
    if Level.TRAINING in levels:
        return "the training and its results" if Level.RESULT in levels else "the training"
    return "the results"


# ---- of answers -----------------------------------------------------------------------------------------------


def tensors_proof(
    steps: int,
    seen: int,
    agreed: int,
    gaps: Mapping[str, Sequence[str]],
    *,
    is_all: bool,
    first: int | None = None,
    every: int = 1,
) -> Iterator[str]:
    """Yield what is known of tensors that a replay saved, which is its run in so many steps by the trail.

    ``gaps`` are the values that are not proved, by reason; ``is_all`` says whether all that was asked for was saved;
    ``first`` is the step from which the trail was compared, for a replay from a keyframe; the trail has one in
    ``every`` steps.
    """
    since = "" if first is None else f" from step {first:,} on"
    is_run = f"the replay is that run in {_each_of(every)} {steps:,} steps{since}"
    if seen and is_all and not (agreed or gaps):
        yield f"proved: {is_run}"
    elif seen or agreed or gaps:
        yield f"{is_run}: of what the trail sees, {seen:,} values are proved"
    if agreed:
        yield f"{agreed:,} values, which the trail does not see, are the same in a second replay"
    for reason, names in gaps.items():
        yield f"not proved: {len(names):,} values, first {names[0]}: the trail does not see them, and {reason}"


def _each_of(every: int) -> str:
    """Return which steps a trail has that has one in so many."""
    return "each of" if every == 1 else f"each of those steps that its trail has, one in {every:,} of"


def debugged_replay(first: int, compared: int, stopped: int, diverged: tuple[int, str] | None, every: int) -> str:
    """Return what is known of a replay that stopped in a debugger at a step, by steps of the trail from a first one on.

    ``diverged`` is the first step that differs, and its quantity; the trail has one in ``every`` steps.
    """
    if not compared > first and stopped > first:
        return "no step of the trail was compared, so that nothing is known of where the replay stopped"
    if diverged is None:
        return (
            f"the replay was that run in {_each_of(every)} the steps {first:,} to {compared - 1:,}"
            if compared > first
            else (f"the replay stopped at step {stopped:,}, where the state of that run was put in")
        )
    step, quantity = diverged
    if step < stopped:
        where = f"when it stopped at step {stopped:,}"
        return f"the replay was not that run {where}: it differs at step {step:,}, by its {quantity}"
    return f"it is another run from step {step:,} on, by its {quantity}: by what was changed in the debugger"


def taken_snapshot(step: int, compared: int, first: int, every: int) -> str:
    """Return what the trail says of a snapshot of a step, by the steps that were compared from a first one on."""
    last, stride = compared - 1, f" (one in {every:,} steps was looked at)" if every > 1 else ""
    if last < step:
        return f"the trail proves steps {first:,} to {last:,}, which made this state; not step {step:,} itself{stride}"
    return f"the trail proves that the replay was that run from step {first:,} to {last:,}{stride}"


def continued_run(
    first: int, compared: int, diverged: tuple[int, str] | None, results: Sequence[str], every: int
) -> str:
    """Return what is known of a run that goes on from another, by the steps from a first one on that both have.

    ``diverged`` is the first step that differs, and its quantity.
    """
    if diverged is not None:
        step, quantity = diverged
        return f"not that training any more: step {step:,} is another one than in the first run, by its {quantity}"
    if not compared > first:
        return "no step of the trail is in both runs: whether it is the same training is not known"
    which = "" if every == 1 else f"one in {every} of the "
    words = f"{which}steps {first:,} to {compared - 1:,} are the same in both runs, by the trail"
    return words if results else f"{words}, which has neither gradients nor parameters of them"


def beside_trail_notes(which: str, facts: Sequence[OtherFact]) -> Iterator[str]:
    """Yield in which categories two executions with equal trails differ, each with its first difference."""
    for fact in facts:
        yield f"note: {which} differ in what the trail does not see: {fact.fact}: {fact.name}: {fact.detail}"


def coverage_words(batches: int, uses: Mapping[BatchUse, int]) -> str:
    """Return what is known of an epoch that drew each sample once, from what updates are known to have had."""
    wholly, partly, reached, unwatched = (
        uses.get(use, 0) for use in (BatchUse.WHOLLY, BatchUse.PARTLY, BatchUse.REACHED, BatchUse.UNWATCHED)
    )
    if wholly == batches:
        return "each once"
    if unwatched == batches:
        return "each drawn once; whether batches reached an update is not known"
    parts = [f"{wholly + partly + reached:,} of {batches:,} batches were seen to reach an update"]
    parts += [f"{partly:,} in part"] if partly else []
    parts += [f"{reached:,} with samples that are not known"] if reached else []
    parts += [f"of {unwatched:,} it is not known"] if unwatched else []
    return f"each drawn once; {', '.join(parts)}"


def epochs_headline(*, are_complete: bool, are_used: bool) -> str:
    """Return what is known of the epochs of a ledger that gives no reason to look at it."""
    if not are_complete:
        return "nothing to look at"
    return "nothing seen twice or left out" if are_used else "nothing drawn twice or never"


def still_that_training(trail: Difference, printed: Difference) -> str:
    """Return whether a replay of changed code made the steps of its recording, and what it printed; may be empty."""
    figures = [leaf.figures for leaf in trail.leaves() if "steps" in leaf.figures]
    first = trail.first()
    if first is not None:
        return f"no longer the recorded training: {sentence(first)}"
    if not figures:
        return ""
    same, recorded = sum(min(each["steps"]) for each in figures), sum(each["steps"][0] for each in figures)
    every = max(each["every"] for each in figures)
    if every > 1:
        training = f"the same training in the steps that its trail has, one in {every} of {recorded:,}"
    else:
        training = f"the same training: {same:,} of {recorded:,} steps of the trail"
    if not all("parameters" in each["known"] for each in figures):
        training += ", which lacks parameters"
    return "; ".join(filter(None, (training, _printed_words(printed))))


def _printed_words(printed: Difference) -> str:
    differing = [leaf for leaf in printed.leaves() if leaf.verdict.differs]
    if not differing:
        return "it printed the same" * bool(printed.children)  # of what is not known nothing is said
    more = [leaf.figures.get(PRINTED_MORE) for leaf in differing]
    if None in more:
        return f"it printed otherwise: {sentence(differing[0])}"
    counts = {"more": sum(n for n in more if n and n > 0), "fewer": -sum(n for n in more if n and n < 0)}
    texts = [f"{count:,} line{'' if count == 1 else 's'} {word}" for word, count in counts.items() if count]
    return f"the script printed {' and '.join(texts)}"


# ---- of parts of a comparison -----------------------------------------------------------------------------------


def same_until(steps: str, step: int, but_for: str = "") -> str:
    """Return up to which step nothing differs but what has no effect."""
    return f"identical for {steps}{but_for}; at step {step:,}" if step else "at step 0, the first,"


def same_until_passed_over(before: int, step: int) -> str:
    """Return between which steps two runs part, if their trails passed over those before the one that differs."""
    return f"identical in the steps up to {before:,} that both trails have; they part by step {step:,}, where"


def each_step_compared(every: int) -> str:
    """Return what is not known of runs of which the trail has one in so many steps."""
    return (
        f"the trails have one in {every} steps: of those between, what was recorded of losses and samples was compared,"
        " and what they left in the next one"
    )


def same_then_ends(steps: str, side: str, of_other: str) -> str:
    """Return that one run ends while nothing differs."""
    return f"identical for {steps}, then the {side} run ends; the other has {of_other}"


def same_as_far(steps: str) -> str:
    """Return that nothing differs in the steps that both runs have."""
    return f"identical for {steps}, as far as both go"


def same_from_there(steps: str) -> str:
    """Return that a resumed run is the other one from its first step on."""
    return f"all {steps} from there on are identical"


def equal_predictions(text: str) -> str:
    """Return that all predictions of two runs have the same bits."""
    return f"{text}, exactly equal"


def exact_share(share: str, kinds: str) -> str:
    """Return what part of its requests a replay was answered as recorded, and the numbers by kind."""
    return f"{share} exact ({kinds})"


NOT_EXACTLY = "what was not answered exactly:"
OUTCOMES = {  # of a report
    "identical": "Identical, bit for bit",
    "different": "Different",
    "tolerated": "Not identical, within the tolerance asked for",
    "failed": "Failed: a run did not end successfully",
    "not-compared": "Not compared",
}
BUT_FOR_DECLARED = "Identical, but for what was declared that it may differ"


# ---- of several pairs of runs: studies, reproductions, gates -------------------------------------------------------


def pairs_are(count: int, total: int, verdict: Verdict = Verdict.IDENTICAL) -> str:
    """Return how many of the compared pairs have a verdict."""
    verb = "is" if total == 1 else "are"
    return f"{count} of {total} pair{'' if total == 1 else 's'} {verb} {verdict.value}"


def every_pair_was(setups: str) -> str:
    """Return that no compared pair of these setups differed."""
    return f"Every pair of {setups} was identical"


def nothing_varies(comparisons: int) -> str:
    """Return that no measure of an evaluation differed in some comparisons of two runs."""
    return f"{NOTHING_VARIES} in {comparisons} comparison{'' if comparisons == 1 else 's'}"


def nothing_varies_in(setups: str) -> str:
    """Return that no measure of an evaluation differed in these setups."""
    return f"In {setups} nothing varies that was compared."


def replays_were_same(count: int) -> str:
    """Return how many replays in a row were like their recordings, with the same entropy and nothing else."""
    return f"with the recorded entropy, {count} of {count} replays were identical"


def settings_were_enough(count: int) -> str:
    """Return in how many comparisons the final settings made the runs equal."""
    return f"The final settings were identical in {count} of {count} comparisons."


def not_needed(option: str) -> str:
    """Return that runs are equal without an option."""
    return f"the runs are identical: {option} is not needed"


def not_needed_in(replays: int) -> str:
    """Return that replays were equal without an option."""
    return f"not needed: without it replays were identical ({replays})"


def comparisons_needed(pairs: int) -> str:
    """Return how many comparisons have to come out equal one after the other."""
    return f"identical comparisons needed in a row: {pairs}"


def answered(requests: int, share: str) -> str:
    """Return what part of its requests a replay was answered with the recorded bytes, at the recorded place."""
    return f"{share} of {requests} requests were answered exactly"


EQUAL_PAIRS = "pairs identical"  # the head of a column of numbers
REPRODUCED = "**identical**, bit for bit"
RUNS_ARE_SAME, RUNS_DIFFER = "the runs are identical", "the runs still differ"
BUT_FOR_OUTPUTS = "identical, but for outputs, which were not compared"
ALL_REPEAT = "passed: every training is bitwise identical"
GOLDEN_KEPT = "the golden was not changed, as a run and its replay are not identical"
RULES = {  # of a gate
    "paired": "A run and its replay must be identical",
    "varied": "A replay in other surroundings must be identical",
    "golden": "A replay of the golden must be identical",
}


# ---- of a resumed training -----------------------------------------------------------------------------------------


def resumed_line(finding: ResumeFinding, missing: str, others: str) -> str:
    """Return whether a resumed training is the whole one; `missing` and `others` name what it lacks, what differs."""
    if finding.is_exact:
        times = sum(ignored.times for ignored in finding.ignores)
        but = f"; {times:,} difference{'s were' if times != 1 else ' was'} ignored as declared" if times else ""
        what = "in its steps, its files, what it printed and what it logged"
        noted = "; what was not compared is noted" if finding.notes else ""
        return f"exact: the resumed training is the whole one, bit for bit, {what}{but}{noted}"
    if finding.others and finding.first is None and not any(other.compared for other in finding.others):
        return f"not known to be exact: what was compared is the whole training's, and these were not: {others}"
    if finding.others and finding.first is None:
        cause = f"; the checkpoint lacks {missing}: put in from the whole training, that makes them the same"
        same = f"all {finding.compared:,} steps compared are the whole training's"
        return f"not exact: {same}, and these are not: {others}{cause if finding.proved else ''}"
    if not finding.proved:
        tried = "no part of the state that was seen makes it the whole one, so that " if finding.trials else ""
        return f"not exact: the resumed training is another one; {tried}it lacks something that was not seen"
    return (
        f"not exact: the checkpoint lacks {missing}; put in from the whole training, that makes the resumed one"
        f" identical in all of the {finding.window:,} steps compared"
    )


EXACT_RESUME = "exact resume"  # a gate's requirement
NOT_PROVED = "; not proved to matter"
