"""``reprokit help``: what an error or a warning means and what to do, without a network; or a command's help."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import click
import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import UsageError

PAGE = "errors.md"  # of docs; an installation has it in the package
WARNINGS = "model/run_warnings.toml"
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
SECTION = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def warnings() -> dict[str, str]:
    """Return what each warning means, by its code."""
    text = (Path(__file__).parents[1] / WARNINGS).read_text(encoding="utf-8")
    return msgspec.convert(toml_text.loads(text), dict[str, str])


def sections() -> dict[str, str]:
    """Return what is said of each error and warning, by slug or code."""
    package = Path(__file__).parents[1]
    path = next(filter(Path.exists, (package / PAGE, package.parent / "docs" / PAGE)))
    text = LINK.sub(r"\1", path.read_text(encoding="utf-8"))
    return warnings() | {slug: words.strip() for slug, words in SECTION.findall(text)}


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from reprokit.cli.main import COMMANDS

    return sorted(name for name in {*COMMANDS, *sections()} if name.startswith(incomplete))


@click.command(epilog="Example: reprokit help shim")
@click.argument("name", required=False, shell_complete=_complete)
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Explain an error, a warning, or a command.

    NAME is what stands behind 'reprokit:' in an error's line, such as shim, or in brackets behind a warning, such as
    disk-full; or a command, such as record.
    """
    group = context.parent
    assert group is not None
    assert isinstance(group.command, click.Group)
    if name is None:
        click.echo(group.get_help())
        return
    explained, asked = sections().get(name), group.command.get_command(group, name)
    if explained is not None:
        click.echo(f"{name}\n\n{explained}")
        if asked is not None:
            click.echo(f"\nThere is a command of this name too: reprokit {name} --help")
    elif asked is not None:
        click.echo(asked.get_help(click.Context(asked, parent=group, info_name=name)))
    else:
        near = difflib.get_close_matches(name, [*sections(), *group.command.list_commands(group)], n=3)
        advice = f"did you mean {' or '.join(near)}?" if near else "'reprokit' alone lists the commands"
        raise UsageError(f"there is no error, no warning and no command {name!r}; {advice}")
