"""States what was trained: the runs, their code, data and seeds, and the files that came out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from reprokit.core.redaction import Secrets
from reprokit.core.untrusted_json import object_in
from reprokit.evidence.attest.source import source_of, stated_source
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report.section import ReportedRuns
from reprokit.run_files import rundir
from reprokit.verify.categories import script_variables, seeds
from reprokit.verify.show.summary import RunSummary

MAX_STATED = 1000  # files of code, and files of data
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the runs, what the first was made of, and its outputs."""
    files = runs.first.outputs.files
    return {
        "runs": tuple(run_of(summary, _SIDES[number]) for number, summary in enumerate(runs.summaries)),
        "trained": _trained(runs.first),
        "outputs": tuple(audit.Output(path=file.path, size=file.size, digest=file.digest) for file in files),
    }


def run_of(summary: RunSummary, side: Literal["left", "right"]) -> audit.RunReport:
    """Return the facts of one run."""
    run = summary.run
    sealed = rundir.seal_file(summary.directory.path / rundir.RUN)
    return audit.RunReport(
        side=side,
        run_id=run.run_id,
        kind="replay" if run.kind == "replay" else "recording",
        path=str(summary.directory.path),
        state=summary.state,
        whole=not (summary.in_progress or summary.directory.unfinished),
        command=tuple(run.command),
        working_directory=run.working_directory,
        started=run.started,
        ended=run.ended or "",
        seconds=run.duration,
        host=run.host,
        reprokit=run.reprokit,
        machine=_machine(summary.environment),
        source=source_of(summary.environment),
        replay_of=run.replay_of.run_id if run.replay_of is not None else "",
        digest=sealed.digest if sealed is not None else "",
        outliving=run.outliving_processes,
        original=run.bundled.original if run.bundled is not None else "",
    )


def _machine(environment: dict[str, Any]) -> str:
    """Return processor, accelerators and system in one line."""
    cpu, system, gpus = object_in(environment, "cpu"), object_in(environment, "system"), environment.get("gpus")
    parts = [cpu.get("model"), f"{cpu['count']} processors" if cpu.get("count") else ""]
    parts += gpus if isinstance(gpus, list) else []
    parts += [system.get(key) for key in ("os", "kernel", "libc")]
    return "; ".join(str(part) for part in parts if part)


def _trained(summary: RunSummary) -> audit.Trained:
    run = summary.run
    return audit.Trained(
        command=shlex.join(Secrets().value(run.command)),
        code=tuple(islice(_code(summary.environment), MAX_STATED)),
        data=tuple(islice(_data(summary.environment), MAX_STATED)),
        seeds=(*seeds.seeding_calls(summary.directory, summary.scan), *seeds.summary(summary.scan)),
        variables=tuple(
            f"{read.name} ({read.state}), at {read.where}"
            for read in islice(script_variables.listed(summary.scan.variables), MAX_STATED)
        ),
        recipe=f"{run.recipe.path} ({run.recipe.digest})" if run.recipe is not None else "",
    )


def _code(environment: dict[str, Any]) -> Iterator[audit.Stated]:
    yield from stated_source(environment)
    for name, digest in sorted(object_in(environment, "code").items()):
        yield audit.Stated(str(name), str(digest))


def _data(environment: dict[str, Any]) -> Iterator[audit.Stated]:
    data = environment.get("data")
    for read_file in data if isinstance(data, list) else ():
        if isinstance(read_file, dict):
            rest = ", ".join(
                f"{key} {value}"
                for key, value in read_file.items()
                if key not in ("path", "digest", "pieces") and value
            )
            value = str(read_file.get("digest") or "not read")
            yield audit.Stated(str(read_file.get("path", "")), f"{value} ({rest})" if rest else value)
