"""Has rules judge each step of a run, in the order of the training, and turns their alarms into findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from reprokit.core.errors import BadRule, ReprokitError, RunDamaged, reason
from reprokit.model.run import RUNNING
from reprokit.rules.catalogue import RULES
from reprokit.rules.observations import Alarm, EvaluationStep
from reprokit.run_files import findings
from reprokit.run_files.findings import ALARM, MAX_FINDINGS, RULE, CodePlace, Finding, FindingsFile
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import EVAL, POLL, TRAIN, TensorTrial, as_they_are

MAX_OF_RULE = 50  # tensors for which one rule raises alarms


class RuleSession:
    """The rules that judge one run, and the alarms that they have raised."""

    def __init__(self, trial: TensorTrial, rules: dict[str, Any]) -> None:
        self.trial = trial
        self.findings: dict[tuple[str, str], Finding] = {}
        self.problems: list[str] = []
        self.failed: list[str] = []  # names of rules
        self._rules: dict[str, Any] = {}
        self.names: list[str] = []  # names of all rules, including failed ones
        self.add(rules)
        self._reads = Counter[str]()  # reads of tensors, by rule
        self._raised = Counter[str]()
        self._position = 0
        self._train: list[int] = []
        self._eval: list[int] = []
        self._last = 0  # training step
        self._ruined_at: int | None = None  # the first step with an alarm that lasts
        self._consequences: set[tuple[str, str]] = set()  # rules and tensors of alarms that follow from it

    @property
    def judged(self) -> int:
        """Return the number of rules that read a tensor."""
        return sum(1 for count in self._reads.values() if count)

    @property
    def unjudged(self) -> list[str]:
        """Return the rules that read no tensor, as nothing that they judge was saved."""
        return [name for name, rule in self._rules.items() if not self._reads[name] and hasattr(rule, "trial")]

    def add(self, rules: dict[str, Any]) -> None:
        """Add rules that judge the following steps."""
        self._rules.update(rules)
        self.names.extend(rules)

    def judge(self, goes_on: Callable[[], bool] | None = None) -> Iterator[list[Finding]]:
        """Yield new findings as they are raised, together those that a rule raises at once.

        `goes_on` waits for further steps; it returns whether the training may still be running.
        """
        self.trial.follows = False
        idle_since = time.monotonic()
        is_over = False
        while True:
            self.trial.refresh(is_over=is_over)
            position = self._position
            yield from self._new_steps()
            if self.trial.loaded_all_steps or goes_on is None:
                yield from self._close_evaluation()
                return
            if self._position > position:
                idle_since = time.monotonic()
            idle = time.monotonic() - idle_since
            yield from self._call_rules("invoke_when_idle", idle)
            is_over = not goes_on()

    def notes(self) -> list[str]:
        """Return the problems of rules, and the names of those that had nothing to judge."""
        idle = [name for name in self.unjudged if not hasattr(self._rules[name], "invoke_when_idle")]
        unjudged = [f"not judged, as nothing that they look at was saved: {', '.join(sorted(idle))}"] if idle else []
        return [*self.problems, *unjudged, *self._after_ruin()]

    def _after_ruin(self) -> Iterator[str]:
        """Yield how many alarms are not reported, as parameters were no numbers any more."""
        count = len(self._consequences - self.findings.keys())
        if count:
            what = "1 further alarm" if count == 1 else f"{count} further alarms"
            cause = f"step {self._ruined_at}, which left NaN in parameters"
            yield f"not reported: {what} after {cause}: they follow from it"

    def _new_steps(self) -> Iterator[list[Finding]]:
        for mode, step in self.trial.order()[self._position :]:
            self._position += 1
            if mode == EVAL:
                self._eval.append(step)
            elif mode == TRAIN:
                yield from self._close_evaluation()
                self._train.append(step)
                self._last = step
                yield from self._call_rules("invoke_at_step", step)

    def _close_evaluation(self) -> Iterator[list[Finding]]:
        if self._eval:
            evaluation = EvaluationStep(self._last, tuple(self._train), tuple(self._eval))
            self._train, self._eval = [], []
            yield from self._call_rules("invoke_at_evaluation", evaluation)

    def _call_rules(self, hook: str, argument: Any) -> Iterator[list[Finding]]:
        """Call one method of each rule; a rule that fails is reported and not called again."""
        for name, rule in list(self._rules.items()):
            method: Callable[[Any], Any] | None = getattr(rule, hook, None)
            if method is None:
                continue
            reads = self.trial.reads
            try:
                with shards.numpy().errstate(all="ignore"):  # tensors hold NaN and infinity
                    alarms = list(_alarms(name, method(argument)))
                raised = list(self._raise(name, alarms))
                yield from [raised] if raised else ()
            except RunDamaged:
                raise
            except Exception as error:
                failure = (
                    reason(error) if isinstance(error, ReprokitError) else f"{type(error).__name__}: {reason(error)}"
                )
                self.problems.append(f"{name} failed after step {self._last} and was not asked again: {failure}")
                self.failed.append(name)
                del self._rules[name]
            self._reads[name] += self.trial.reads - reads

    def _raise(self, rule: str, alarms: Iterable[Alarm]) -> Iterator[Finding]:
        for alarm in alarms:
            if alarm.is_lasting and self._ruined_at is None:
                self._ruined_at = self._last
            if self._ruined_at is not None and self._last > self._ruined_at and rule in RULES:
                self._consequences.add((rule, alarm.tensor))
                continue
            before = self.findings.get((rule, alarm.tensor))
            if before is not None:
                self.findings[rule, alarm.tensor] = findings.repeated(before)
            elif self._raised[rule] < MAX_OF_RULE and len(self.findings) < MAX_FINDINGS:
                self._raised[rule] += 1
                finding = self.findings[rule, alarm.tensor] = self._finding(rule, alarm)
                yield finding
            elif self._raised[rule] == MAX_OF_RULE:
                self._raised[rule] += 1
                self.problems.append(f"{rule}: further tensors are not reported (limit {MAX_OF_RULE})")

    def _finding(self, rule: str, alarm: Alarm) -> Finding:
        tensor = self.trial.tensor(alarm.tensor) if self.trial.has_tensor(alarm.tensor) else None
        place = tensor.place if tensor is not None else None
        return Finding(
            id=f"{RULE}:{rule}:{alarm.tensor}",
            kind=RULE,
            subject=alarm.tensor or "the training",
            rule=rule,
            module=tensor.module if tensor is not None else "",
            where=[CodePlace(file=place[0], line=place[1])] if place is not None else [],
            calls=1,
            step=self._last,
            why=alarm.evidence,
            verdict=ALARM,
        )


def judged_steps(rule: Any, steps: range) -> Iterator[list[Finding]]:
    """Yield what one rule finds in some steps of its trial, as it is found; see reprokit.rules.invoke_rule."""
    trial: TensorTrial = getattr(rule, "base_trial", None) or rule.trial

    class Bounded:
        """The rule, asked for these steps alone."""

        def invoke_at_step(self, step: int) -> Any:
            return rule.invoke_at_step(step) if step in steps else None

    def goes_on() -> bool:
        time.sleep(POLL)
        return all(step < steps.stop - 1 for _, step in trial.order()[-1:])

    session = RuleSession(trial, {type(rule).__name__: Bounded()})
    with as_they_are([trial]):
        yield from session.judge(goes_on)
    if session.problems:
        raise BadRule("; ".join(session.problems))


def _alarms(rule: str, result: Any) -> Iterator[Alarm]:
    """Yield the alarms of a rule's result; a user's rule may also return True."""
    if result is True:
        yield Alarm("", f"{rule} is met")
    elif result not in (None, False):
        for alarm in result:
            yield alarm if isinstance(alarm, Alarm) else Alarm("", str(alarm)[:1000])


def keep(trial: TensorTrial, session: RuleSession) -> FindingsFile:
    """Replace the findings of earlier rules in findings.json; written only if the run has ended."""
    before = findings.read(trial.run)
    of_profile = [finding for finding in before.findings if finding.kind != RULE] if before is not None else []
    content = FindingsFile(
        run_id=trial.run.run.run_id,
        findings=[*session.findings.values(), *of_profile],
        notes=before.notes if before is not None else [],
        rule_notes=session.notes(),
    )
    if trial.run.run.status != RUNNING:
        findings.write(trial.path, content)
    return content
