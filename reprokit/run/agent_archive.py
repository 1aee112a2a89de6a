"""Writes the code of the agent's start into one file, which each Python of a run reads in place of some twenty.

To look for a module takes longer than to run it. The file lies beside the bytecode and is read by
agent/bootstrap/sitecustomize.py, which checks each module against its source as importlib does.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PACKAGE = "_reprokit_agent"  # the agent's name in the training
FIRST, REGISTRY, EACH_PROCESS = "start", "registry", "EACH_PROCESS"


def write(agent: Path, archive: Path) -> None:
    """Write the file for this interpreter. Raises OSError if it cannot be written."""
    entries = {}
    for module, name in _modules(agent).items():
        source = agent / name
        found = source.stat()
        code = compile(source.read_bytes(), source, "exec", dont_inherit=True, optimize=0)
        entries[f"{PACKAGE}.{module}".rstrip(".")] = (name, found.st_mtime, found.st_size, code)
    file, temporary = tempfile.mkstemp(dir=archive.parent)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(importlib.util.MAGIC_NUMBER + marshal.dumps(entries))
        os.chmod(temporary, 0o644)
        os.replace(temporary, archive)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _modules(agent: Path) -> dict[str, str]:
    """Return the modules that each process imports, as far as that stands in the sources, and their files."""
    found: dict[str, str] = {}
    waiting = [FIRST]
    while waiting:
        module = waiting.pop()
        place = module.replace(".", "/")
        names = [name for name in (f"{place}.py", f"{place}/__init__.py".lstrip("/")) if (agent / name).is_file()]
        if module in found or not names:
            continue
        found[module] = names[0]
        tree = ast.parse((agent / names[0]).read_bytes())
        package = module if names[0].endswith("__init__.py") else module.rpartition(".")[0]
        waiting += [module.rpartition(".")[0], *_imported(tree, package)]
        if module == REGISTRY:
            waiting += _of_each_process(tree)
    return found


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield what a module of this package may import from the agent as it is executed."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*filter(None, above), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names))


def _of_each_process(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the registry's table of what is imported in each process."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == EACH_PROCESS:
            rows = node.value.elts if isinstance(node.value, ast.Tuple) else []
            for row in rows:
                if isinstance(row, ast.Tuple) and isinstance(row.elts[0], ast.Constant):
                    yield str(row.elts[0].value)
