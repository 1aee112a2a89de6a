"""Where the files of a training come from, as W3C PROV in its JSON form: what it used, made, and who answers for it.

https://www.w3.org/TR/prov-dm/ describes the model, https://www.w3.org/submissions/prov-json/ the form.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from reprokit.errors import ExtraMissing
from reprokit.printable import printable
from reprokit.report.facts import AuditFacts, Run
from reprokit.report.spdx import time_of

NAMESPACE: Final = uuid.UUID("7b4b2b8e-64f3-5a0c-9e0e-2f8a3f8f4a55")  # of identifiers, which follow from the run ids
TERMS: Final = "urn:reprokit:terms:"
LONGEST = 4000  # characters of one text


def document(facts: AuditFacts) -> str:
    """The document as PROV-JSON text."""
    try:
        from prov.model import PROV, ProvDocument
    except ImportError:
        raise ExtraMissing("PROV needs one more package: pip install 'reprokit-harness[prov]'") from None
    made = ProvDocument()
    made.set_default_namespace(f"urn:reprokit:{uuid.uuid5(NAMESPACE, ' '.join(run.run_id for run in facts.runs))}:")
    made.add_namespace("reprokit", TERMS)
    software = made.agent("reprokit", {"prov:type": PROV["SoftwareAgent"], "reprokit:version": facts.reprokit})
    verdict = _texts("what was found", verdict=facts.verdict.outcome, said=facts.verdict.sentence)
    report = made.entity("report", verdict)
    made.wasAttributedTo(report, software)
    activities = [_activity(made, facts, run) for run in facts.runs]
    for activity, record in activities:
        made.wasAssociatedWith(activity, software)
        made.wasGeneratedBy(record, activity)
        made.wasDerivedFrom(report, record)
    _materials(made, facts, activities[0][0])
    _outputs(made, facts, activities[0][0])
    if facts.runs[-1].replay_of == facts.runs[0].run_id:
        made.wasInformedBy(activities[-1][0], activities[0][0])
    return str(made.serialize(format="json", indent=2)) + "\n"


def _activity(made: Any, facts: AuditFacts, run: Run) -> tuple[Any, Any]:
    """A run, and the record that reprokit kept of it."""
    name = "first" if run.side == "left" else "second"
    said = _texts(f"{run.kind} {run.run_id}", command=facts.trained.command, state=run.state, machine=run.host)
    activity = made.activity(name, time_of(run.started), time_of(run.ended), said)
    return activity, made.entity(f"record-{name}", _texts("run.json", digest=run.digest))


def _materials(made: Any, facts: AuditFacts, activity: Any) -> None:
    """Code and data that the training was seen to read."""
    for part, things in (("code", facts.trained.code), ("data", facts.trained.data)):
        for number, one in enumerate(things):
            made.used(activity, made.entity(f"{part}-{number}", _texts(one.name, digest=one.value)))


def _outputs(made: Any, facts: AuditFacts, activity: Any) -> None:
    for number, file in enumerate(facts.outputs):
        output = made.entity(f"output-{number}", _texts(file.path, digest=file.digest))
        made.wasGeneratedBy(output, activity)


def _texts(title: str, **facts: str) -> dict[str, str]:
    """What is said of something, without what nobody knows."""
    said = {"prov:label": title, **{f"reprokit:{name}": text for name, text in facts.items()}}
    return {name: printable(text, LONGEST) for name, text in said.items() if text}
