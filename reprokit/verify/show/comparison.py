"""Presents comparisons of runs and of files as rows of text and as JSON documents.

reprokit/schemas/verify.schema.json and diff.schema.json describe the documents.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.core.difference import Difference, Role, Verdict, overall
from reprokit.core.printable import bounded, cut, listed
from reprokit.core.screen import Cells, print_rows
from reprokit.diff.descriptions import histogram
from reprokit.run_files.rundir import HOSTS
from reprokit.verify.categories.series_leaves import KINDS
from reprokit.verify.comparison import HostsComparison, Level
from reprokit.verify.facts import BY_NAME
from reprokit.verify.ignores import ignored_in
from reprokit.verify.verdict import counted_bookkeeping, files_line, hosts_line, sentence, shortened, verdict_line

if TYPE_CHECKING:
    from reprokit.run_files.rundir import RunDirectory
    from reprokit.verify.comparison import Comparison

CAUSAL = ("entropy", "environment", "command", "seeds")  # categories of causes
RACING = ("clock", "calendar", "memory", "ticks")  # sources of a run itself that can be causes
CAUSES = 6  # kinds of likely causes of a difference that are listed
FURTHER = 3  # names of further causes of a kind
FACTS = 4  # facts of the environment named in the short table
TELLING = ("weights at the end of model", "replay fidelity")  # prefixes of leaves that users look for in a category
VALUE = 60  # characters of a value
NOTHING = "neither run recorded any"
LISTED = 5  # values of a category that are bookkeeping, in the short table
STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.BOOKKEEPING: "green",
    Verdict.TOLERATED: "yellow",
    Verdict.DIFFERENT: "bold red",
    Verdict.MISSING: "bold red",
    Verdict.IGNORED: "yellow",
    Verdict.NOT_COMPARED: "bold yellow",
    Verdict.INFORMATION: "cyan",
    Verdict.NOT_RECORDED: "dim",
}
FORMAT = 1
SHORT = 24  # rows on one screen


@dataclass(frozen=True)
class TableRow:
    """One line of a table: an indented name, a verdict and a sentence."""

    name: str
    verdict: Verdict
    text: str
    depth: int = 0


def causes(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each kind of what can be the cause around two differing runs, the likeliest first."""
    if not comparison.verdict.differs:
        return
    categories = {category.name: category for category in comparison.tree.children}
    nodes = (node for name in CAUSAL if name in categories for node in _kinds_of_facts(categories[name]))
    facts = ([leaf for leaf in node.leaves() if leaf.can_change_results] for node in nodes)
    yield from bounded(filter(None, facts), CAUSES, " kinds", _first_fact)
    runs = comparison.left.run, comparison.right.run
    for kind in RACING:
        texts = dict.fromkeys(source.text for run in runs for source in run.uncovered if source.source == kind)
        yield from (f"{text}{_further(list(texts)[1:])}" for text in list(texts)[:1])


def _kinds_of_facts(category: Difference) -> tuple[Difference, ...]:
    """Return the groups of a category whose facts are of one kind; the category itself where it has none."""
    return category.children if any(child.judged is None for child in category.children) else (category,)


def _first_fact(leaves: list[Difference]) -> str:
    """Describe the first fact of a kind, and name further ones."""
    return shortened(_fact_words(leaves[0])) + _further([leaf.name for leaf in leaves[1:]])


def _further(names: list[str]) -> str:
    """Return how many more there are, with the first names where these are short."""
    if not names:
        return ""
    listed_names = listed([cut(name, VALUE) for name in names], FURTHER)
    return f" (and {len(names)} more: {listed_names})" if max(map(len, names)) <= VALUE else f" (and {len(names)} more)"


def rows(comparison: Comparison, *, every_leaf: bool) -> Iterator[TableRow]:
    """Yield the categories in causal order, each with its most important leaf, or with every leaf."""
    for category in comparison.tree.children:
        if every_leaf:
            yield from _tree(category, 0)
        else:
            yield TableRow(category.name, category.verdict, shortened(headline(category)))
            yield from _bookkeeping_rows(category)


def _bookkeeping_rows(category: Difference) -> Iterator[TableRow]:
    """Yield the first values of a category that are bookkeeping, if nothing else in it differs."""
    if category.verdict.not_bitwise:
        return
    leaves = [leaf for leaf in category.leaves() if leaf.kind is not None]
    for leaf in leaves[:LISTED]:
        yield TableRow(leaf.name, leaf.verdict, shortened(_leaf_text(leaf)), 1)
    if len(leaves) > LISTED:
        yield TableRow("...", Verdict.BOOKKEEPING, f"{len(leaves) - LISTED} more: --all lists them", 1)


def _tree(node: Difference, depth: int) -> Iterator[TableRow]:
    text = _leaf_text(node) if node.judged is not None else node.detail
    yield TableRow(node.name, node.verdict, text, depth)
    for child in node.children:
        yield from _tree(child, depth + 1)


def _leaf_text(leaf: Difference) -> str:
    if leaf.is_sentence:
        return leaf.detail.removeprefix(leaf.name).lstrip(" :")  # the row shows the name
    values = leaf.left if leaf.left == leaf.right else f"{leaf.left or '-'} | {leaf.right or '-'}"
    return f"{values}  {leaf.detail}" if leaf.detail and values else values or leaf.detail


def headline(category: Difference) -> str:
    """Return the first difference in a category; if there is none, what was compared."""
    first = category.first()
    if first is not None and category.detail:
        return category.detail
    if first is not None:
        return sentence(first) + _more_words(category)
    not_compared = category.first_of(Verdict.NOT_COMPARED)
    if not_compared is not None:
        count = sum(1 for leaf in category.leaves() if leaf.verdict is Verdict.NOT_COMPARED)
        return sentence(not_compared) + (f" (and {count - 1} more)" if count > 1 else "")
    tolerated = category.first_tolerated()
    if tolerated is not None:
        count = sum(1 for leaf in category.leaves() if leaf.verdict is Verdict.TOLERATED)
        return sentence(tolerated) + (f" (and {count - 1} more)" if count > 1 else "")
    if category.verdict is Verdict.IGNORED:
        return f"{ignored_in(category)} ignored as declared"
    if category.name == "times":
        leaves = category.leaves()
        return "; ".join(f"{leaf.name} {leaf.left or 'unknown'} and {leaf.right or 'unknown'}" for leaf in leaves)
    information = [leaf for leaf in category.leaves() if leaf.verdict is Verdict.INFORMATION]
    if information:
        information.sort(key=lambda leaf: not leaf.can_change_results)
        telling_nodes = [
            child for child in category.children if child.name.startswith(TELLING) and child not in information
        ]
        return "; ".join([*map(_value, telling_nodes), _facts_words(information)])
    counts = category.bookkeeping()
    if counts:
        differ = "differs" if sum(counts.values()) == 1 else "differ"
        return f"{_equal_words(category)}; {counted_bookkeeping(counts)} {differ}".removeprefix(f"{NOTHING}; ")
    return _equal_words(category)


def _more_words(category: Difference) -> str:
    count = sum(1 for leaf in category.leaves() if leaf.verdict.differs)
    return f" (and {count - 1} more)" if count > 1 else ""


def _facts_words(leaves: list[Difference]) -> str:
    """Describe facts that are shown and not compared; those that can change results come first."""
    if len(leaves) == 1:
        return _fact_words(leaves[0])
    count = sum(1 for leaf in leaves if leaf.can_change_results)
    first_facts = "; ".join(_fact_words(leaf, brief=True) for leaf in leaves[:FACTS])
    return (
        f"{len(leaves)} facts differ, {count} can change results: {first_facts}{'; ...' if len(leaves) > FACTS else ''}"
    )


def _fact_words(leaf: Difference, *, brief: bool = False) -> str:
    """Return a fact with its values and, unless `brief`, its meaning."""
    values = leaf.left or leaf.right
    if leaf.left and leaf.right:
        values = f"{_cut_value(leaf.left)} against {_cut_value(leaf.right)}"
    meaning = f" ({leaf.detail})" if leaf.detail and (not brief or not values) else ""
    return f"{leaf.name}: {values}{meaning}" if values else f"{leaf.name}{meaning}"


def _cut_value(text: str) -> str:
    return cut(shortened(text), VALUE)


def _equal_words(category: Difference) -> str:
    """Describe what was compared in a category without differences."""
    equal_parts = [child for child in category.children if child.verdict is Verdict.IDENTICAL]
    if not equal_parts:
        leaves = (leaf for leaf in category.leaves() if leaf.detail and leaf.kind is None)
        return next(map(sentence, leaves), NOTHING)
    text = _value(next((part for part in equal_parts if part.name.startswith(TELLING)), equal_parts[0]))
    return f"{len(equal_parts)} compared, all the same; {text}" if len(equal_parts) > 1 else text


def _value(part: Difference) -> str:
    """Return the name of an equal node with the value of its last leaf: for weights the digest of all."""
    *_, leaf = part.leaves()
    return f"{part.name}: {leaf.left or leaf.right}"


def print_comparison(comparison: Comparison, *, every_leaf: bool) -> None:
    """Print a comparison, short or with every leaf."""
    cells = [Cells(("likely cause", "information", text), STYLES[Verdict.INFORMATION]) for text in causes(comparison)]
    cells += [
        Cells(("  " * row.depth + row.name, row.verdict.value, row.text), STYLES[row.verdict])
        for row in rows(comparison, every_leaf=every_leaf)
    ]
    footer = [_side("left", comparison.left), _side("right", comparison.right)]
    footer += [f"note: {note}" for note in comparison.notes]
    if comparison.tolerances:
        footer.append(f"tolerance: {comparison.tolerances}")
    footer += [f"ignored: {use}" for use in comparison.ignores]
    if comparison.normalizations:
        footer.append(f"normalized: {'; '.join(comparison.normalizations)}")
    print_rows(verdict_line(comparison), cells, footer, f"bold {STYLES[comparison.verdict]}")


def _side(name: str, run: RunDirectory) -> str:
    return f"{name}: {run.path}, a {KINDS[run.run.kind]} of {shlex.join(run.run.command)}"


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON document, with texts as they are in the run directories."""
    first = comparison.tree.decisive()
    return {
        "format": FORMAT,
        "verdict": comparison.verdict.value,
        "left": _run(comparison.left),
        "right": _run(comparison.right),
        "first_difference": None if first is None else node(first),
        **({"tolerances": comparison.tolerances} if comparison.tolerances else {}),
        **({"ignores": [use.document() for use in comparison.ignores]} if comparison.ignores else {}),
        "notes": list(comparison.notes),
        "normalizations": list(comparison.normalizations),
        "bookkeeping": {kind.value: count for kind, count in comparison.tree.bookkeeping().items()},
        "categories": [
            {**node(child), "level": (BY_NAME[child.name].level if child.name in BY_NAME else Level.RESULT).value}
            for child in comparison.tree.children
        ],
    }


def _run(run: RunDirectory) -> dict[str, Any]:
    names = ("run_id", "kind", "command", "status", "exit_code", "signal", "started", "duration")
    return {"path": str(run.path), **{name: getattr(run.run, name) for name in names}}


def node(difference: Difference) -> dict[str, Any]:
    """Return a node of the tree and its children for a JSON document."""
    result: dict[str, Any] = {
        "name": difference.name,
        "verdict": difference.verdict.value,
        "left": difference.left,
        "right": difference.right,
        "detail": difference.detail,
        "can_change_results": difference.can_change_results,
        "children": [node(child) for child in difference.children],
    }
    if difference.ignored:
        result["ignored"] = [
            {"rule": one.rule, "thing": one.thing.value, "count": one.count} for one in difference.ignored
        ]
    if difference.role is not Role.OWN:
        result["role"] = difference.role.name.lower()
    if difference.kind is not None:
        result.update(kind=difference.kind.value, count=difference.count)
    return {**result, "figures": dict(difference.figures)} if difference.figures else result


def document_of_files(tree: Difference, left: Path, right: Path) -> dict[str, Any]:
    """Return the comparison of two files as a JSON document, with texts as they are in the files."""
    first = tree.first() or tree.first_tolerated()
    return {
        "format": FORMAT,
        "verdict": overall(tree).value,
        "left": str(left),
        "right": str(right),
        "first_difference": None if first is None else node(first),
        "tree": node(tree),
    }


def print_tree(tree: Difference, left: Path, right: Path, *, every_leaf: bool) -> None:
    """Print verdict and differences of files, cut to one screen unless every leaf is requested."""
    rows = list(_file_rows(tree, 0, every_leaf=every_leaf))
    footer = [f"left: {left}", f"right: {right}"]
    if not every_leaf and len(rows) > SHORT:
        footer.insert(0, f"{len(rows) - SHORT} more lines: --all shows them")
        rows = rows[:SHORT]
    print_rows(files_line(tree), rows, footer, STYLES[overall(tree)])


def _file_rows(tree: Difference, depth: int, *, every_leaf: bool) -> Iterator[Cells]:
    """Yield differences and details; with `every_leaf` also equal nodes and figures."""
    is_shown = tree.verdict.not_bitwise or tree.detail or every_leaf or depth == 0
    if not is_shown:
        return
    yield _file_cells(tree, depth)
    if every_leaf:
        yield from (Cells(("  " * (depth + 1) + name, "", text)) for name, text in histogram(tree.figures))
    for child in tree.children:
        yield from _file_rows(child, depth + 1, every_leaf=every_leaf)


def _file_cells(tree: Difference, depth: int) -> Cells:
    text = tree.detail
    if tree.judged is not None and tree.left != tree.right:
        text = f"{tree.left or '-'} | {tree.right or '-'}  {tree.detail}"
    return Cells(("  " * depth + tree.name, tree.verdict.value, text or tree.left), STYLES[tree.verdict])


def print_hosts(result: HostsComparison, *, every_leaf: bool) -> None:
    """Print one row for each host, or with `every_leaf` its categories as well."""
    notes = [f"left: {result.left}", f"right: {result.right}", *(f"note: {note}" for note in result.notes)]
    notes += [f"ignored: {use}" for use in result.ignores]
    differing = [name for name, comparison in result.hosts.items() if comparison.verdict.differs]
    if differing and not every_leaf:
        pair = (f"{side}/{HOSTS}/{differing[0]}" for side in (result.left, result.right))
        notes.append(f"more of this host: reprokit verify {' '.join(pair)}")
    print_rows(hosts_line(result), list(_rows(result, every_leaf)), notes, f"bold {STYLES[result.verdict]}")


def _rows(result: HostsComparison, every_leaf: bool) -> Iterator[Cells]:
    for name, side in result.lacking:
        yield Cells((f"host {name}", Verdict.MISSING.value, f"the {side} run has no part"), STYLES[Verdict.MISSING])
    for name, comparison in result.hosts.items():
        style = STYLES[comparison.verdict]
        yield Cells((f"host {name}", comparison.verdict.value, verdict_line(comparison).partition(": ")[2]), style)
        for text in causes(comparison):
            yield Cells(("  likely cause", Verdict.INFORMATION.value, text), STYLES[Verdict.INFORMATION])
        for row in rows(comparison, every_leaf=True) if every_leaf else ():
            yield Cells(("  " * (row.depth + 1) + row.name, row.verdict.value, row.text), STYLES[row.verdict])
        for note in comparison.notes:
            yield Cells(("  note", "", note), STYLES[Verdict.INFORMATION])


def document_of_hosts(result: HostsComparison) -> dict[str, Any]:
    """Return the comparison as a JSON document; each host has the document of two runs."""
    return {
        "format": FORMAT,
        "verdict": result.verdict.value,
        "left": str(result.left),
        "right": str(result.right),
        "notes": list(result.notes),
        "lacking": [{"host": name, "in": side} for name, side in result.lacking],
        "hosts": {name: document(comparison) for name, comparison in result.hosts.items()},
    }
