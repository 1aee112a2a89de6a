"""No behavior depends on the text of a message: sentences are searched only where another program wrote them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:]? \(?[A-Za-z]{2,}")
SEARCHES = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index", "count"),
    *("split", "replace", "search", "match", "fullmatch", "compile", "findall", "finditer", "sub"),
}
# What other programs write, and names (not sentences) that have a space in them.
PARSED = {
    "agent/frameworks/lightgbm.py": {"end of trees", "[boosting: dart]"},  # lines of LightGBM's format
    "agent/pytorch/dispatch_modes.py": {"Expected a value of type 'Tensor' for argument"},  # PyTorch's own error
    "agent/pytorch/compiled_graphs.py": {r"Original ATen: \[([^\]]*)\]"},  # comments of Inductor's code
    "agent/operators/call_graph.py": {"<built-in method ", "<frozen importlib", "<frozen zipimport"},  # cProfile's
    "core/native.py": {
        "/* reprokit: begin of what cffi reads */",
        "/* reprokit: end of what cffi reads */",
    },  # C
    "diff/compare.py": {"/as written"},  # a part's name
    "diff/sqlite_process.py": {"CREATE TABLE"},  # SQL
    "verify/categories/series_leaves.py": {"random state"},  # leaves' names
    "verify/show/comparison.py": {"weights at the end of model", "replay fidelity"},
    "verify/read/run_check.py": {"; the run cannot be used"},  # shown without it
    "core/secret_forms.py": {"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,60}-----|\\Z)"},
}


class Texts:
    """The texts that the constants of all modules stand for."""

    def __init__(self, trees: dict[Path, ast.Module]) -> None:
        self._constants = {path: dict(_assigned(tree)) for path, tree in trees.items()}
        self.nodes = {path: list(ast.walk(tree)) for path, tree in trees.items()}
        self._imported = {path: dict(_imported(path, self.nodes[path])) for path in trees}
        self._paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in trees}

    def of(self, path: Path, node: ast.expr) -> Iterator[str]:
        """Every text that an expression may be, as far as constants tell."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            for element in node.elts:
                yield from self.of(path, element)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "frozenset" and node.args:
            yield from self.of(path, node.args[0])
        elif isinstance(node, ast.Starred):
            yield from self.of(path, node.value)
        elif isinstance(node, ast.Name):
            yield from self._named(path, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = ".".join(self._imported[path].get(node.value.id, ("", "")))
            if module in self._paths:
                yield from self._named(self._paths[module], node.attr)

    def _named(self, path: Path, name: str) -> Iterator[str]:
        if name in self._constants[path]:
            yield from self.of(path, self._constants[path][name])
        module, original = self._imported[path].get(name, ("", ""))
        if module in self._paths:
            yield from self._named(self._paths[module], original)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((one.id, part) for one, part in pairs if isinstance(one, ast.Name))


def _imported(path: Path, nodes: list[ast.AST]) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((alias.asname or alias.name, (module, alias.name)) for alias in node.names)


def _searched(node: ast.AST) -> Iterator[ast.expr]:
    """What is looked for in a text, or cut off it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
        yield from node.args[:1]
    elif isinstance(node, ast.Compare):
        sides = zip(node.ops, [node.left, *node.comparators], strict=False)
        # `name in ("one state", "another")` compares whole values: only a search within a text is meant.
        yield from (left for op, left in sides if isinstance(op, (ast.In, ast.NotIn)) and _is_text(left))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, (ast.Constant, ast.JoinedStr, ast.Name, ast.Attribute))


def _found(trees: dict[Path, ast.Module]) -> Iterator[str]:
    texts = Texts(trees)
    for path, nodes in texts.nodes.items():
        name = str(path.relative_to(ROOT / "reprokit"))
        for node in nodes:
            for searched in _searched(node):
                sentences = filter(SENTENCE.search, texts.of(path, searched))
                yield from (f"{name}: {text}" for text in sentences if text not in PARSED.get(name, ()))


def test_no_sentence_is_searched_for_behavior() -> None:
    trees = {path: ast.parse(path.read_bytes()) for path in sorted((ROOT / "reprokit").rglob("*.py"))}
    assert sorted(set(_found(trees))) == []


def test_a_sentence_is_found_wherever_its_constant_stands() -> None:
    words = ast.parse('REASONS = ("the disk was full",)')
    direct = ast.parse('def full(text):\n    return "was not loaded" in text or text.endswith("too large to read")')
    through = ast.parse("from reprokit import words\n\ndef full(text):\n    return text.startswith(words.REASONS)")
    imported = ast.parse("from reprokit.words import REASONS as why\n\nfull = lambda text: text.startswith(why)")
    trees = {ROOT / "reprokit" / "words.py": words}
    for number, tree in enumerate((direct, through, imported)):
        trees[ROOT / "reprokit" / f"{number}.py"] = tree
    assert sorted(_found(trees)) == [
        "0.py: too large to read",
        "0.py: was not loaded",
        "1.py: the disk was full",
        "2.py: the disk was full",
    ]
