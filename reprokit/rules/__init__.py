"""Rules that detect a failing training by its saved tensors; reprokit's own run in a process of their own."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from reprokit.run_files.findings import Finding


class RuleEvaluationConditionMet(Exception):
    """A rule raised an alarm; the text names it, the step and why."""


def invoke_rule(
    rule: Any, start_step: int = 0, end_step: int | None = None, raise_eval_cond: bool = False
) -> list[Finding]:
    """Have a rule of SageMaker Debugger's kind judge its `base_trial` from one step on to the one before another.

    Waits for further steps while the training runs. Raises RuleEvaluationConditionMet at the first alarm if asked for,
    and BadRule where the rule fails.
    """
    from reprokit.rules.evaluation import judged_steps

    findings: list[Finding] = []
    for raised in judged_steps(rule, range(start_step, sys.maxsize if end_step is None else end_step)):
        findings += raised
        if raise_eval_cond:
            raise RuleEvaluationConditionMet(f"{raised[0].rule} at step {raised[0].step}: {raised[0].why}")
    return findings
