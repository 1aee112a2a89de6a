"""Checks what a gate requires of findings and of resumption, and names the first divergent operator (--locate)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from reprokit.core import untrusted_json
from reprokit.core.bounds import read_whole
from reprokit.core.errors import ReprokitError
from reprokit.core.messages import say
from reprokit.gate.results import FAILED, PASSED, REQUIRED, TROUBLE, Case
from reprokit.gate.trainings import GateTraining
from reprokit.model.question import Question
from reprokit.model.tensor_selection import FOR_RULES, selection
from reprokit.questions import divergence_text
from reprokit.questions.locate import LocateOptions, is_locatable, locate
from reprokit.questions.resume import ResumeStudy, ResumeWork
from reprokit.questions.resume_text import verdict
from reprokit.rules import catalogue
from reprokit.rules.evaluation import RuleSession
from reprokit.rules.report import sentence
from reprokit.run.interruption import Interruption
from reprokit.run_files import findings as findings_file
from reprokit.run_files.findings import FindingsFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.trial import TensorTrial
from reprokit.verify.ignores import Ignores
from reprokit.verify.verdict import EXACT_RESUME

MAX_ACCEPTED = 64 << 20  # bytes of a file of accepted findings
ACCEPTED = "name the findings.json of a run of 'reprokit profile'"
QUESTION = Question(tensors=selection(FOR_RULES))
DIVERGENT = "first divergent operator"


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


def of_resumption(
    training: GateTraining,
    directory: Path,
    place: Path,
    data: tuple[str, ...],
    ignores: Ignores,
    interruption: Interruption,
) -> Iterator[Case]:
    """Yield whether the training, interrupted and resumed, is the whole one, if required; the runs are kept if not."""
    if not training.require.exact_resume:
        return
    place.mkdir(parents=True, mode=0o700)
    work = ResumeWork(
        command=training.command,
        resume_command=training.command,
        directory=directory,
        place=place,
        data=data,
        ignores=ignores,
    )
    finding = ResumeStudy(work, interruption).find()
    words = verdict(finding)
    if finding.is_exact:
        shutil.rmtree(place, ignore_errors=True)
        yield Case(suite=REQUIRED, name=EXACT_RESUME, outcome=PASSED, right=words)
    else:
        yield Case(suite=REQUIRED, name=EXACT_RESUME, outcome=FAILED, message=words)


def located(suite: str, recording: RunDirectory, replay: RunDirectory, interruption: Interruption) -> Iterator[Case]:
    """Yield a case that names the first divergent operator, if the framework's operators can be logged."""
    if not is_locatable(recording, replay):
        return
    try:
        divergence = locate(recording, replay, LocateOptions(), interruption, say)
    except ReprokitError as error:
        yield Case(suite=suite, name=DIVERGENT, outcome=TROUBLE, message=f"it could not be located: {error}")
        return
    words = "; ".join(line.strip() for line in divergence_text.lines(divergence))
    yield Case(suite=suite, name=DIVERGENT, outcome=FAILED if divergence.processes else TROUBLE, message=words)
