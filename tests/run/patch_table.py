"""The tables of docs/patches.md, made from the catalog: `python -m tests.run.patch_table` writes them again."""

from __future__ import annotations

from pathlib import Path

from reprokit.patches import CATALOGUE, Patch, Takes

PAGE = Path(__file__).parents[2] / "docs" / "patches.md"
BEGIN, END = "<!-- the catalog, by tests/run/patch_table.py -->\n", "<!-- end of the catalog -->\n"


def table() -> str:
    """A row for each patch."""
    head = "| patch | what it does | for | auto | said before the start | cost |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(row, CATALOGUE))


def row(patch: Patch) -> str:
    cells = (
        f"`{shown(patch)}`",
        f"{escaped(patch.title)}{conflicts(patch)}",
        f"{patch.framework} {patch.versions}".strip() or "any program",
        "yes" if patch.automatic else "",
        patch.warning,
        f"{patch.cost}{' (measured)' if patch.measured else ''}" or "not measured",
    )
    return f"| {' | '.join(cells)} |\n"


def shown(patch: Patch) -> str:
    """The id as it is given, with its value."""
    return {
        Takes.NOTHING: patch.id,
        Takes.MAYBE: f"{patch.id}[={patch.value}]",
        Takes.A_VALUE: f"{patch.id}={patch.value}",
    }[patch.takes]


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def conflicts(patch: Patch) -> str:
    return f"; not with {', '.join(f'`{name}`' for name in patch.conflicts)}" if patch.conflicts else ""


def page_with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
