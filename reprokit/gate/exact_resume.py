"""Checks that an interrupted and resumed training equals the uninterrupted one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from reprokit.gate.results import FAILED, PASSED, REQUIRED, Case
from reprokit.gate.trainings import GateTraining
from reprokit.questions.resume import ResumeStudy, ResumeWork
from reprokit.questions.resume_text import verdict
from reprokit.run.interruption import Interruption
from reprokit.verify.verdict import EXACT_RESUME


def judge(
    training: GateTraining, directory: Path, place: Path, data: tuple[str, ...], interruption: Interruption
) -> Iterator[Case]:
    """Yield the case if it is required; the runs are kept if it fails."""
    if not training.require.exact_resume:
        return
    place.mkdir(parents=True, mode=0o700)
    work = ResumeWork(
        command=training.command, resume_command=training.command, directory=directory, place=place, data=data
    )
    finding = ResumeStudy(work, interruption).find()
    words = verdict(finding)
    if finding.is_exact:
        shutil.rmtree(place, ignore_errors=True)
        yield Case(suite=REQUIRED, name=EXACT_RESUME, outcome=PASSED, right=words)
    else:
        yield Case(suite=REQUIRED, name=EXACT_RESUME, outcome=FAILED, message=words)
