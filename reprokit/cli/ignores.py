"""The options --ignore, --ignore-console and --no-ignores, which all commands have that compare runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reprokit.cli.options import current_directory, flag, replaced
from reprokit.core.errors import UsageError

if TYPE_CHECKING:
    from reprokit.verify.ignores import Ignores


class IgnoreRequest(msgspec.Struct, frozen=True):
    """What the command line says of ignores."""

    outputs: tuple[str, ...] = ()
    console: tuple[str, ...] = ()
    no_ignores: bool = False  # of the configuration

    @property
    def words(self) -> list[str]:
        """Return the options as they were given."""
        given = [("--ignore", text) for text in self.outputs] + [("--ignore-console", text) for text in self.console]
        return [word for pair in given for word in pair] + ["--no-ignores"] * self.no_ignores

    def ignores(self, file: Path | None = None) -> Ignores:
        """Return its rules, then those of the configuration: of this file, else of the one that counts here."""
        from reprokit.run_files import user_config
        from reprokit.verify.ignores import Ignores, configured, declared

        try:
            own = declared(self.outputs, self.console) if self.outputs or self.console else Ignores()
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.no_ignores:
            return own
        located = user_config.find(current_directory()) if file is None else user_config.read(file)
        return own.and_also(configured(located))


options = replaced(  # of commands that compare runs, which are given what they ask for as `declared`
    ("ignore", "ignore_console", "no_ignores"),
    lambda ignore, ignore_console, no_ignores: {"declared": IgnoreRequest(ignore, ignore_console, no_ignores)},
    click.option(
        "--ignore",
        multiple=True,
        metavar="GLOB[:KEY]",
        help="Let the files that GLOB matches differ, or their values named KEY, as in 'metrics.json:started'."
        " Weights and results are refused. Repeatable.",
    ),
    click.option(
        "--ignore-console",
        multiple=True,
        metavar="REGEX",
        help="Leave out of printed lines what REGEX matches before they are compared. Repeatable.",
    ),
    flag("--no-ignores", "Ignore nothing that only the configuration declares."),
)
