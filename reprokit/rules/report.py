"""Presents the findings of rules: alarms that may have one reason together, as lines and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.printable import cut, listed, printable
from reprokit.rules.evaluation import RuleSession
from reprokit.run_files.findings import Finding

FORMAT = 1
NAME = 80  # characters of a further tensor's name
MORE = 3  # names of further tensors
SLACK = 10  # steps by which a rule with less patience may be earlier than what it follows from

_RATE = "a learning rate that is too large, gradients without clipping, or data that are not normalized"
_NOTHING_LEARNED = "a learning rate that does not fit, labels that do not belong to their inputs, or a detached graph"
USUAL = {  # what a rule's alarm usually comes from: by experience, not from this run
    "ExplodingTensor": _RATE,
    "FiniteExplosion": _RATE,
    "WeightUpdateRatio": "a learning rate that is too large or too small",
    "VanishingGradient": "many saturating layers, a poor initialization, or a detached part",
    "AllZero": "activations that died, a detached part, or an input that is zero",
    "UnchangedTensor": "a parameter that the optimizer was not given, a detached graph, or a learning rate of zero",
    "DyingReLU": "a learning rate that is too large, or biases that are too negative",
    "SaturatedActivation": "inputs that are not normalized, or weights that begin too large",
    "LossNotDecreasing": _NOTHING_LEARNED,
    "Underfitting": _NOTHING_LEARNED,
    "Overfit": "a model that is too large for its data, without regularization",
    "Overtraining": "more epochs than the training needs",
    "ClassImbalance": "data that are not shuffled, or not sampled by class",
    "CheckInputImages": "a missing normalization of the images",
    "NLPSequenceRatio": "padding to a length that few samples have",
    "RankWeightsDiverge": "a forward pass that bypasses DistributedDataParallel, so that gradients are not reduced",
    "GradientsNeverZeroed": "a missing optimizer.zero_grad()",
    "EvaluationWithDropout": "a missing model.eval() before the evaluation",
    "DoubleSoftmax": "a softmax at the end of the model, before a loss that has its own",
    "TrainedInEvalMode": "a missing model.train() after an evaluation",
}
_NUMBERS = (  # what numbers that grew too large, or units that died, bring with them
    "ExplodingTensor", "WeightUpdateRatio", "DyingReLU", "SaturatedActivation", "VanishingGradient", "AllZero",
    "UnchangedTensor", "LossNotDecreasing", "Underfitting", "Overtraining",
)  # fmt: skip
_DEAD = ("VanishingGradient", "AllZero", "UnchangedTensor", "LossNotDecreasing", "Underfitting", "Overtraining")
FOLLOWS = {  # the rules whose alarms may follow from what another one found
    "GradientsNeverZeroed": ("FiniteExplosion", *_NUMBERS),
    "CheckInputImages": ("FiniteExplosion", *_NUMBERS),
    "FiniteExplosion": _NUMBERS,
    "ExplodingTensor": ("FiniteExplosion", *_NUMBERS[1:]),
    "WeightUpdateRatio": ("DyingReLU", "SaturatedActivation", *_DEAD),
    "DyingReLU": _DEAD,
    "SaturatedActivation": _DEAD,
    "VanishingGradient": ("UnchangedTensor", "LossNotDecreasing", "Underfitting", "Overtraining"),
    "UnchangedTensor": ("LossNotDecreasing", "Underfitting", "Overtraining"),
    "LossNotDecreasing": ("Underfitting", "Overtraining"),
}


@dataclass
class AlarmGroup:
    """The findings of one rule, the first one first, and the groups of other rules that may follow from them."""

    findings: list[Finding]
    followers: list[AlarmGroup] = field(default_factory=list)

    @property
    def rule(self) -> str:
        """Return the rule's name."""
        return self.findings[0].rule

    @property
    def step(self) -> int:
        """Return the step of the first finding."""
        return self.findings[0].step


def grouped(findings: Iterable[Finding]) -> list[AlarmGroup]:
    """Return a group for each rule that raised an alarm; those that may follow from another stand under that."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    groups = sorted(map(AlarmGroup, by_rule.values()), key=lambda group: group.step)
    heads: list[AlarmGroup] = []
    for group in groups:
        earlier = (other for other in groups if other is not group and group.rule in FOLLOWS.get(other.rule, ()))
        # Of two that may follow from each other, the earlier one leads.
        leading = [
            other
            for other in earlier
            if other.step <= group.step + SLACK
            and (other.rule not in FOLLOWS.get(group.rule, ()) or groups.index(other) < groups.index(group))
        ]
        if leading:
            leading[0].followers.append(group)
        else:
            heads.append(group)
    return heads


def sentence(finding: Finding, *further: Finding) -> str:
    """Describe alarms of a rule in a sentence: the first finding with place and evidence, further ones by name."""
    module = f" of {finding.module}" if finding.module and finding.module not in finding.subject else ""
    place = f" ({finding.where[0].file}:{finding.where[0].line})" if finding.where else ""
    names = listed([cut(one.subject, NAME) for one in further], MORE)
    last = max((one.step for one in further), default=finding.step)
    until = f" until step {last}" if last > finding.step else ""
    more = f" (and {len(further)} more{until}: {names})" if further else ""
    what = f"{finding.rule} at step {finding.step}: {finding.subject}{module}{place}: {finding.why}"
    return printable(what, 1000) + printable(more)


def lines(session: RuleSession) -> Iterator[str]:
    """Yield the alarms of a session, each with what it usually comes from and what may follow from it."""
    for group in grouped(session.findings.values()):
        yield sentence(*group.findings)
        if group.rule in USUAL:
            yield f"    usually: {USUAL[group.rule]}"
        followers = [*_all_followers(group)]
        if followers:
            named = [f"{follower.rule} at step {follower.step}{_counted(follower)}" for follower in followers]
            yield printable(f"    may follow from it: {', '.join(named)}")


def _all_followers(group: AlarmGroup) -> Iterator[AlarmGroup]:
    for follower in group.followers:
        yield follower
        yield from _all_followers(follower)


def _counted(group: AlarmGroup) -> str:
    return f" ({len(group.findings)} tensors)" if len(group.findings) > 1 else ""


def print_end(path: Path, session: RuleSession) -> None:
    """Print the number of alarms, and notes on rules that judged nothing."""
    count, total = len(grouped(session.findings.values())), len(session.findings)
    alarms = f"{count or 'no'} {'alarm' if count == 1 else 'alarms'}"
    of_all = f" ({total} findings)" if total > count else ""
    steps = session.trial.steps(show_incomplete_steps=True)
    seen = f" in {len(steps):,} steps, {steps[0]:,} to {steps[-1]:,}" if steps else ""
    print(printable(f"{path}: {alarms} of {session.judged} rules{seen}{of_all}"))
    for note in session.notes():
        print(printable(f"note: {note}", 2000))


def document(path: Path, session: RuleSession) -> dict[str, Any]:
    """Return the findings and notes as a JSON document."""
    raised = msgspec.to_builtins(list(session.findings.values()))
    alarms = [
        {
            "rule": group.rule,
            "step": group.step,
            "usually": USUAL.get(group.rule, ""),
            "may_follow": [follower.rule for follower in _all_followers(group)],
        }
        for group in grouped(session.findings.values())
    ]
    return {"format": FORMAT, "path": str(path), "alarms": alarms, "findings": raised, "notes": session.notes()}
