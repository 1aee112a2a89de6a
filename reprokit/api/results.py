"""What the Python interface returns: runs, and the verdict on two of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.api.commands import Command, NewRunPlace, OptionValue, name_text, started, words_of
from reprokit.core.difference import Difference, Verdict
from reprokit.verify.comparison import Comparison, HostsComparison
from reprokit.verify.verdict import hosts_line, verdict_line

if TYPE_CHECKING:
    from reprokit.model.run import RunFile
    from reprokit.model.run_warning import RunWarning
    from reprokit.run_files.rundir import RunDirectory

RunLike = str | os.PathLike[str]


class Run:
    """A run in its directory: a recording or a replay. It may be given wherever a path of a run may."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a run by its path or its name; RunNotFound if there is none."""
        from reprokit.run_files import home

        self._path = Path(os.path.abspath(home.resolve(name_text(path))))
        self._directory  # noqa: B018  # raises for what is no run

    @cached_property
    def _directory(self) -> RunDirectory:
        from reprokit.run_files.rundir import RunDirectory

        return RunDirectory(self._path)

    @property
    def path(self) -> Path:
        """The run directory, an absolute path."""
        return self._path

    @property
    def facts(self) -> RunFile:
        """All that run.json holds."""
        return self._directory.run

    @property
    def command(self) -> list[str]:
        """The command that was run."""
        return self.facts.command

    @property
    def exit_code(self) -> int | None:
        """The exit status of the command; None if a signal ended it, or if it has not ended."""
        return self.facts.exit_code

    @property
    def signal(self) -> str | None:
        """The signal that ended the command, such as "SIGKILL"."""
        return self.facts.signal

    @property
    def warnings(self) -> list[RunWarning]:
        """The warnings of the run, each with a code and a text."""
        return self.facts.warnings

    @property
    def recording(self) -> Run | None:
        """The run that this one replayed; None for a recording. RunNotFound if it is gone."""
        from reprokit.run_files import home

        return None if self.facts.replay_of is None else Run(home.recording_of(self._directory))

    def replay(
        self,
        output: str | os.PathLike[str] | None = None,
        *,
        command: Command | None = None,
        silent: bool = False,
        **options: OptionValue,
    ) -> Run:
        """Run the recorded command again with the entropy it was given; see `reprokit.replay`."""
        words = () if command is None else words_of(command)
        return new_run("replay", [self], output, options, words, silent=silent)

    def continue_(
        self, output: str | os.PathLike[str] | None = None, *, silent: bool = False, **options: OptionValue
    ) -> Run:
        """Go on with this recording, which was killed, and return the run that has the entropy of both.

        Args:
            output: The run directory to create; by default one of its own below `.reprokit`.
            silent: Print nothing.
            **options: The options of `reprokit continue`, with underscores: `from_start=True`.
        """
        return new_run("continue", [self], output, options, (), silent=silent)

    def __fspath__(self) -> str:
        return str(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return f"Run({str(self._path)!r})"

    def _repr_html_(self) -> str:
        from reprokit import notebook

        return notebook.show(self._path)._repr_html_()


def new_run(
    name: str,
    arguments: Sequence[RunLike],
    output: str | os.PathLike[str] | None,
    options: Mapping[str, OptionValue],
    command: Sequence[str],
    *,
    silent: bool,
) -> Run:
    """Execute the command of reprokit that makes a run, and return the run; see `started`."""
    asked = {**options, "output": output, "quiet": True}
    return Run(started(name, arguments, asked, command or None, NewRunPlace, silent=silent).path)


class RunVerdict:
    """The verdict on two runs: true exactly where `reprokit verify` exits with 0."""

    def __init__(self, comparison: Comparison | HostsComparison) -> None:
        """Keep what was found."""
        self.comparison = comparison

    @property
    def _parts(self) -> list[Comparison]:
        """The comparison; of runs of several hosts, that of each."""
        if isinstance(self.comparison, HostsComparison):
            return list(self.comparison.hosts.values())
        return [self.comparison]

    def _leaves(self) -> list[Difference]:
        return [leaf for part in self._parts for leaf in part.tree.leaves()]

    @property
    def state(self) -> str:
        """The verdict's name: "identical", "tolerated", "different" or "not-compared"."""
        return self.comparison.verdict.value

    @property
    def sentence(self) -> str:
        """The verdict in one line, as `reprokit verify` prints it first."""
        found = self.comparison
        return hosts_line(found) if isinstance(found, HostsComparison) else verdict_line(found)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What differs, in causal order: each with `name`, `left`, `right` and `detail`.

        Bits that differ within a tolerance that was asked for, and what was declared that it may differ, are left out.
        """
        return tuple(leaf for leaf in self._leaves() if leaf.verdict.differs)

    @property
    def not_compared(self) -> tuple[Difference, ...]:
        """What both runs changed and what could not be compared; the notes say what else was not seen."""
        return tuple(leaf for leaf in self._leaves() if leaf.verdict is Verdict.NOT_COMPARED)

    @property
    def notes(self) -> tuple[str, ...]:
        """What qualifies the verdict."""
        found = self.comparison
        own = found.notes if isinstance(found, HostsComparison) else ()
        return (*own, *(note for part in self._parts for note in part.notes))

    @property
    def document(self) -> dict[str, Any]:
        """All facts, as `reprokit verify --json` prints them."""
        from reprokit.verify.show.comparison import document, document_of_hosts

        found = self.comparison
        return document_of_hosts(found) if isinstance(found, HostsComparison) else document(found)

    def __bool__(self) -> bool:
        return self.comparison.verdict in (Verdict.IDENTICAL, Verdict.TOLERATED)

    def __repr__(self) -> str:
        return f"<RunVerdict: {self.sentence}>"

    def _repr_html_(self) -> str:
        from reprokit import notebook

        return "".join(notebook.comparison_view(part)._repr_html_() for part in self._parts)
