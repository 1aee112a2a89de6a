"""What promises that something was shown is said in one module, from what was compared and what was not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "reprokit"
WORDS = r"\b(?:identical|exact(?:ly)?|prove[dn]|complete(?:ly)?|each once|nothing varies)\b"
PROMISE = re.compile(WORDS, re.IGNORECASE)
PERHAPS = re.compile(
    r"identical|exact|prove[dn]|complete|each\b.*\bonce|nothing\b.*\bvaries", re.IGNORECASE | re.DOTALL
)
MAKES_THEM = ROOT / "verify" / "verdict.py"
NO_PROMISES = {  # why
    "model/resumption.py": "the names of verdicts in a document",
    "study/statistics.py": "the names of exact statistical tests",
    "verify/bookkeeping/names.py": "the vocabulary of files",
}


def spoken(tree: ast.Module, *, has_help: bool) -> Iterator[tuple[int, str]]:
    """The texts that a module may print: not its docstrings, nor the help of options, nor names without a space."""
    silent: set[int] = set()
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            silent |= {id(first.value)} if isinstance(first, ast.Expr) else set()
            decorators = getattr(node, "decorator_list", [])
            silent |= {id(part) for decorator in decorators for part in ast.walk(decorator)}
    if has_help:
        functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        nodes = [node for function in functions for node in ast.walk(function)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def promises(path: Path) -> list[str]:
    """Where a module says such a word in a sentence."""
    has_help, source = path.parent == ROOT / "cli", path.read_text()
    if not PERHAPS.search(source):
        return []
    texts = spoken(ast.parse(source), has_help=has_help)
    return [f"line {number}: {text}" for number, text in texts if PROMISE.search(text) and " " in text.strip()]


def test_no_other_module_says_so() -> None:
    others = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py") if path != MAKES_THEM}
    found = {name: promises(path) for name, path in others.items() if name not in NO_PROMISES}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_the_search_finds_them() -> None:
    assert len(promises(MAKES_THEM)) > 20
    assert all(promises(ROOT / path) for path in NO_PROMISES)
