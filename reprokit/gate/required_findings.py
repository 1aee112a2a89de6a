"""Checks what a gate requires of findings: a profile blames nothing, and rules raise no alarm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from reprokit.core import untrusted_json
from reprokit.core.bounds import read_whole
from reprokit.core.errors import ReprokitError
from reprokit.gate.results import FAILED, PASSED, REQUIRED, TROUBLE, Case
from reprokit.model.question import Question
from reprokit.model.tensor_selection import FOR_RULES, selection
from reprokit.rules import catalogue
from reprokit.rules.evaluation import RuleSession
from reprokit.rules.report import sentence
from reprokit.run_files import findings as findings_file
from reprokit.run_files.findings import FindingsFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.trial import TensorTrial

MAX_ACCEPTED = 64 << 20  # bytes of a file of accepted findings
ACCEPTED = "name the findings.json of a run of 'reprokit profile'"
QUESTION = Question(tensors=selection(FOR_RULES))


def judged_by_rules(run: RunDirectory, specs: Sequence[str]) -> RuleSession:
    """Judge an ended run by rules."""
    trial = TensorTrial(run.path)
    session = RuleSession(trial, catalogue.chosen(specs, trial))
    for _ in session.judge():
        pass
    return session


def of_rules(session: RuleSession) -> Iterator[Case]:
    """Yield a failed case for each alarm, and a case of trouble for each rule that judged nothing."""
    for finding in session.findings.values():
        name = f"rule {finding.rule}: {finding.subject}"
        yield Case(suite=REQUIRED, name=name, outcome=FAILED, message=sentence(finding), finding=finding.id)
    raised = {finding.rule for finding in session.findings.values()}
    for rule in session.names:
        problem = "it failed" if rule in session.failed else ""
        problem = "nothing that it looks at was saved" if rule in session.unjudged else problem
        if problem:
            message = f"{rule} could not judge the training: {problem}"
            yield Case(suite=REQUIRED, name=f"rule {rule}", outcome=TROUBLE, message=message)
        elif rule not in raised:
            yield Case(suite=REQUIRED, name=f"rule {rule}", outcome=PASSED, right="no alarm")


def of_profile(profiled: FindingsFile, patches: Iterable[str], accepted: set[str] | None) -> Iterator[Case]:
    """Yield a failed case for each blamed finding that is neither patched nor accepted."""
    chosen = {patch.partition("=")[0] for patch in patches}
    passed = True
    for finding in profiled.findings:
        cures = {cure.patch.partition("=")[0] for cure in finding.cures if cure.patch is not None}
        if not finding.blamed or cures & chosen or finding.id in (accepted or ()):
            continue
        passed = False
        what = "is not patched" if accepted is None else "was not accepted"
        message = f"{finding.subject} {what}: {finding.why}"
        yield Case(suite=REQUIRED, name=f"finding {finding.id}", outcome=FAILED, message=message, finding=finding.id)
    if passed:
        yield Case(suite=REQUIRED, name="findings", outcome=PASSED, right=findings_file.in_words(profiled))


def read_accepted(path: Path) -> set[str]:
    """Return the ids of findings in a findings.json or a list of ids."""
    data = read_whole(path, MAX_ACCEPTED, ReprokitError, ACCEPTED)
    try:
        content = untrusted_json.loads(data)
    except ValueError as error:
        raise ReprokitError(f"{path}: {error}; {ACCEPTED}") from None
    listed = content.get("findings", []) if isinstance(content, dict) else content
    return {str(item["id"]) if isinstance(item, dict) and "id" in item else str(item) for item in listed}
