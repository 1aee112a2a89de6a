"""The sections of a report: each fills some of its facts, from what the runs hold."""

from __future__ import annotations

from reprokit.evidence.report.section import Section
from reprokit.evidence.report.sections import (
    answers,
    attention,
    compared,
    confusion,
    curves,
    entropy,
    findings,
    histograms,
    limits,
    machine,
    patches,
    trained,
    wrong_predictions,
)

SECTIONS: tuple[Section, ...] = (
    attention.section,
    compared.section,
    trained.section,
    curves.section,
    confusion.section,
    wrong_predictions.section,
    histograms.section,
    entropy.section,
    findings.section,
    answers.section,
    patches.section,
    machine.section,
    limits.section,
)
