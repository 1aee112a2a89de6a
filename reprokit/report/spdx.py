"""The training and what came out of it as an SPDX 3.0.1 document: the model, data, files, packages and the build.

https://spdx.github.io/spdx-spec/v3.0.1/ describes it. The library's classes are made from the specification's own
shapes: they take no value of the wrong kind, and write no element that lacks what it must have. What a profile of SPDX
asks for beyond that and no run knows (a supplier, where to download) is not made up, so that no conformance to the
profiles of artificial intelligence and of data sets is claimed.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final

from reprokit.errors import ExtraMissing
from reprokit.printable import printable
from reprokit.report.cyclonedx import purl
from reprokit.report.facts import AuditFacts

VERSION: Final = "3.0.1"
NAMESPACE = uuid.UUID("0d9c7b52-51a5-5a0b-8a7c-6c2f1e0c7f63")  # of identifiers, which follow from the run ids
BUILD_TYPE = "urn:reprokit:training"  # a command that trains, run under reprokit
TIME = "%Y-%m-%dT%H:%M:%SZ"
LONGEST = 4000  # characters of one text


def document(facts: AuditFacts) -> str:
    """The document as JSON-LD text."""
    try:
        from spdx_python_model import v3_0_1 as spdx
    except ImportError:
        raise ExtraMissing("SPDX needs one more package: pip install 'reprokit-harness[spdx]'") from None
    elements = _Elements(spdx, facts).all
    stream = io.BytesIO()
    spdx.JSONLDSerializer().write(spdx.SHACLObjectSet(elements), stream, force_at_graph=True, indent=2)
    return stream.getvalue().decode() + "\n"


class _Elements:
    """Makes elements, each with an identifier of its own and the same words on who made it."""

    def __init__(self, spdx: Any, facts: AuditFacts) -> None:
        self._spdx, self._facts = spdx, facts
        self._place = f"urn:uuid:{uuid.uuid5(NAMESPACE, ' '.join(run.run_id for run in facts.runs))}#"
        made = time_of(facts.made) or datetime.fromtimestamp(0, timezone.utc)
        self._creation = spdx.CreationInfo(created=made, specVersion=VERSION)
        self._agent = self._element(spdx.SoftwareAgent, "reprokit", name=f"reprokit {facts.reprokit}")
        self._creation.createdBy = [self._agent]
        self.all = [self._creation, self._agent, *self._made()]

    def _element(self, kind: Any, identifier: str, /, **properties: Any) -> Any:
        return kind(spdxId=self._place + identifier, creationInfo=self._creation, **properties)

    def _made(self) -> Iterator[Any]:
        spdx = self._spdx
        model, build = self._model(), self._build()
        data, files, packages = list(self._data()), list(self._files()), list(self._packages())
        needed = [made for made, one in zip(packages, self._facts.packages, strict=True) if one.imported]
        types = spdx.RelationshipType
        relations = [
            *self._relation("inputs", build, types.hasInput, data),
            *self._relation("outputs", build, types.hasOutput, [model, *files]),
            *self._relation("files", model, types.contains, files),
            *self._relation("packages", model, types.dependsOn, needed),
        ]
        elements = [model, build, *data, *files, *packages, *relations]
        yield self._element(
            spdx.SpdxDocument,
            "document",
            name=f"run {_text(self._facts.runs[0].run_id)}",
            element=[self._agent, *elements],
            rootElement=[model],
            profileConformance=[spdx.ProfileIdentifierType.core, spdx.ProfileIdentifierType.software],
        )
        yield from elements

    def _model(self) -> Any:
        facts, spdx = self._facts, self._spdx
        metrics = [
            spdx.DictionaryEntry(key=_text(curve.name), value=repr(curve.left[-1].value))
            for curve in facts.curves
            if curve.left and curve.left[-1].value is not None
        ]
        return self._element(
            spdx.ai_AIPackage,
            "model",
            name=f"model of run {_text(facts.runs[0].run_id)}",
            software_packageVersion=_text(facts.runs[0].run_id),
            software_primaryPurpose=spdx.software_SoftwarePurpose.model,
            description=_text(" ".join([*facts.attention, facts.verdict.sentence])),
            ai_informationAboutTraining=_text(facts.trained.command),
            ai_limitation=_text(" ".join(facts.limits)),
            ai_metric=metrics,
        )

    def _build(self) -> Any:
        facts, spdx = self._facts, self._spdx
        run = facts.runs[0]
        environment = [spdx.DictionaryEntry(key=_text(item.name), value=_text(item.left)) for item in facts.environment]
        stated = [
            ("reproducibility", facts.verdict.outcome),
            ("random profile", facts.entropy.profile),
            ("replay fidelity", facts.entropy.fidelity_sentence),
            *((one.name, one.value) for one in facts.trained.code),
        ]
        parameters = [spdx.DictionaryEntry(key=_text(key), value=_text(value)) for key, value in stated if value]
        times = {"build_buildStartTime": time_of(run.started), "build_buildEndTime": time_of(run.ended)}
        return self._element(
            spdx.build_Build,
            "training",
            build_buildType=BUILD_TYPE,
            build_buildId=_text(run.run_id),
            build_configSourceEntrypoint=[_text(facts.trained.command)],
            build_environment=environment,
            build_parameter=parameters,
            **{name: time for name, time in times.items() if time is not None},
        )

    def _data(self) -> Iterator[Any]:
        spdx = self._spdx
        for number, one in enumerate(self._facts.trained.data):
            yield self._element(
                spdx.dataset_DatasetPackage,
                f"data-{number}",
                name=_text(one.name),
                verifiedUsing=self._hashes(one.value.partition(" ")[0]),
                dataset_datasetType=[spdx.dataset_DatasetType.noAssertion],
            )

    def _files(self) -> Iterator[Any]:
        for number, file in enumerate(self._facts.outputs):
            yield self._element(
                self._spdx.software_File,
                f"output-{number}",
                name=_text(file.path),
                verifiedUsing=self._hashes(file.digest),
            )

    def _packages(self) -> Iterator[Any]:
        for number, one in enumerate(self._facts.packages):
            yield self._element(
                self._spdx.software_Package,
                f"package-{number}",
                name=_text(one.name),
                software_packageVersion=_text(one.version),
                software_packageUrl=purl(one),
            )

    def _hashes(self, digest: str) -> list[Any]:
        text = digest.removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", text):
            return []
        return [self._spdx.Hash(algorithm=self._spdx.HashAlgorithm.sha256, hashValue=text)]

    def _relation(self, identifier: str, one: Any, kind: str, others: list[Any]) -> Iterator[Any]:
        """That one has to do with others; nothing where there are none."""
        if others:
            yield self._element(self._spdx.Relationship, identifier, from_=one, relationshipType=kind, to=others)


def _text(text: str) -> str:
    return printable(text, LONGEST)


def time_of(text: str) -> datetime | None:
    """A time of a run directory, which may hold anything."""
    try:
        return datetime.strptime(text, TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
