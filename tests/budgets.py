"""Holds each room of the project to its size, for make lint: growth needs a line here and a reason in docs/design.md.

A room is a folder of the product. `python -m tests.budgets --measure` prints the table anew: each room as it is, and a
twentieth more.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE, NATIVE = ROOT / "reprokit", ROOT / "native"
PRODUCT = sorted(path for path in PACKAGE.rglob("*.py") if "_shim" not in path.parts)
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LONGEST = 700  # lines of one file
LOOSE = 8  # modules at the top of the package, and at that of the agent
ROOM_TO_GROW = 1.05
# What each room may have of lines: as it was once it was built, and a twentieth more.
ROOMS = {
    "native": 636,
    "native/artifacts": 500,
    "native/loader": 8,
    "native/python": 1_400,
    "native/recorder": 3_963,
    "native/shim": 6_076,
    "native/supervisor": 2_777,
    "native/trail": 1_670,
    "reprokit": 812,
    "reprokit/agent": 210,
    "reprokit/agent/bootstrap": 109,
    "reprokit/agent/capture": 11_285,
    "reprokit/agent/core": 2_700,
    "reprokit/agent/events": 596,
    "reprokit/agent/frameworks": 2_965,
    "reprokit/agent/listeners": 1_220,
    "reprokit/agent/operators": 6_012,
    "reprokit/agent/orders": 4_620,
    "reprokit/agent/patches": 976,
    "reprokit/agent/predictions": 960,
    "reprokit/agent/pytorch": 5_350,
    "reprokit/agent/questions": 330,
    "reprokit/agent/seeds": 538,
    "reprokit/agent/state": 4_490,
    "reprokit/agent/surroundings": 942,
    "reprokit/agent/tensorflow": 4_475,
    "reprokit/agent/tensors": 1_778,
    "reprokit/api": 769,
    "reprokit/capture": 721,
    "reprokit/cli": 4_854,
    "reprokit/core": 2_370,
    "reprokit/diff": 10_100,
    "reprokit/entropy": 1_094,
    "reprokit/evidence": 4_989,
    "reprokit/gate": 1_876,
    "reprokit/model": 1_593,
    "reprokit/patches": 256,
    "reprokit/profiling": 1_652,
    "reprokit/questions": 3_870,
    "reprokit/reproduce": 1_771,
    "reprokit/rules": 2_050,
    "reprokit/run": 11_375,
    "reprokit/run_files": 3_420,
    "reprokit/saved_tensors": 988,
    "reprokit/study": 5_709,
    "reprokit/verify": 13_730,
}
WORDS = {"docs": 60_000, "docs/design.md": 2_000}
LONG_SENTENCES = 100  # of docs
SMALL = 80  # lines: what is smaller and has one importer is not a module of its own, but for a reason
# Folders whose modules are rows of a table, and modules that are programs or what scripts import.
ROWS = (
    *("cli", "diff/formats", "evidence/report/sections", "run/parts", "verify/categories"),
    *("agent/frameworks", "agent/orders", "agent/patches"),
)
PROGRAMS = re.compile(r"(?:_process|/kept_call|/follower|/sitecustomize|/script_api|/__main__)\.py$")
REASONS = {
    "agent/operators/device_digests.py": "compiles for a GPU, and is imported only with one",
    "agent/pytorch/samplers.py": "what a sampler is, beside what is patched",
    "agent/questions/interrupt.py": "one kind of question, as its neighbors are",
    "agent/registry.py": "the table that start.py walks",
    "api/cell_magic.py": "of notebooks alone, whose shell loads it",
    "api/functions.py": "what another process can find of a function, apart from how commands are started",
    "capture/arrays.py": "the one module there that needs NumPy",
    "evidence/export/dvc.py": "one format, as its neighbors are",
    "evidence/report/text.py": "one presenter, as its neighbors are",
    "gate/goldens.py": "a requirement of gates, as its neighbors are",
    "questions/collective_inputs.py": "what collectives hand from rank to rank: a search of its own",
    "run/agent_archive.py": "imported only where the file that it writes is missing",
    "run/remote_hosts.py": "what is said of commands that leave the host, with its shell text beside it",
    "saved_tensors/object_store.py": "needs a library that most do without",
    "verify/read/run_contexts.py": "reading, while its importer compares",
    "verify/show/suggestions.py": "one presenter, as its neighbors are",
}
LONGEST_SENTENCE = 25  # words


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page: of paragraphs and items, not of code, tables and headings."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"^(?:    |\||#).*$", "", text, flags=re.M)
    text = re.sub(r"^ *(?:- |\d+\. |> )", "\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)):
        yield from re.split(r"(?:(?<=[.:;!?])|(?<=[.:;!?]\*\*))\s+", " ".join(paragraph.split()))


def classes(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                yield node.name


def shared_names() -> int:
    return sum(count > 1 for count in Counter(classes(PRODUCT)).values())


def room_of(path: Path) -> str:
    """Return the room in which a file stands: a folder of the package, of its agent or of the C code."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: 3 if parts[:2] == ("reprokit", "agent") else 2])


def rooms() -> dict[str, int]:
    """Return the lines of each room."""
    sources = [*PRODUCT, *(path for path in NATIVE.rglob("*") if path.suffix in (".c", ".h", ".cu"))]
    sizes: Counter[str] = Counter()
    for path in sources:
        sizes[room_of(path)] += lines([path])
    return dict(sorted(sizes.items()))


def loose(folder: Path) -> int:
    return len(list(folder.glob("*.py")))


def imported() -> Counter[str]:
    """Return how many modules import each file of the package, wherever in them."""
    counts: Counter[str] = Counter()
    names = {name_of(path): str(path.relative_to(PACKAGE)) for path in PRODUCT}
    for path in PRODUCT:
        own = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = ".".join(own[: len(own) - node.level + 1]) if node.level else ""
                base = ".".join(filter(None, (above, node.module)))
                found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        counts.update(names[name] for name in found & names.keys())
    return counts


def name_of(path: Path) -> str:
    """Return the module's name in dots."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def without_reason() -> Iterator[str]:
    """Yield the small modules of one importer that no reason stands for, and reasons that stand for nothing."""
    counts = imported()
    small = {
        name
        for name, path in ((str(path.relative_to(PACKAGE)), path) for path in PRODUCT)
        if lines([path]) < SMALL and counts[name] < 2 and path.name != "__init__.py"
        if not name.startswith(ROWS) and not PROGRAMS.search(f"/{name}")
    }
    yield from sorted(small ^ REASONS.keys())


def excesses() -> Iterator[str]:
    """Yield what is larger than it may be."""
    for room, size in rooms().items():
        if room not in ROOMS:
            yield f"{room} has {size:,} lines and no line in ROOMS of tests/budgets.py: give it one"
        elif size > ROOMS[room]:
            yield f"{room} has {size:,} lines of {ROOMS[room]:,}: remove some, or say why in docs/design.md"
    for path in PRODUCT:
        if lines([path]) > LONGEST:
            yield f"{path.relative_to(ROOT)} has more than {LONGEST} lines: part it by meaning"
    for folder in (PACKAGE, PACKAGE / "agent"):
        if loose(folder) > LOOSE:
            yield f"{folder.relative_to(ROOT)} has {loose(folder)} loose modules of {LOOSE}: give them a room"
    for name in without_reason():
        yield f"{name}: a module of fewer than {SMALL} lines with one importer needs a reason in tests/budgets.py"
    if shared_names():
        yield f"{shared_names()} class names stand twice"
    for name, allowed in WORDS.items():
        found = words(DOCS if name == "docs" else [ROOT / name])
        if found > allowed:
            yield f"{name} has {found:,} words of {allowed:,}"
    long = sum(len(text.split()) > LONGEST_SENTENCE for page in DOCS for text in sentences(page))
    if long > LONG_SENTENCES:
        yield f"{long} sentences of docs have more than {LONGEST_SENTENCE} words, of {LONG_SENTENCES}"


def main(arguments: list[str]) -> int:
    """Print the sum, which is no budget, and what is too large; return whether anything is."""
    if arguments == ["--measure"]:
        for room, size in rooms().items():
            print(f'    "{room}": {round(size * ROOM_TO_GROW):_},')
        return 0
    found = list(excesses())
    print(f"lines: {lines(PRODUCT):,} of Python in {len(PRODUCT)} files; words of docs: {words(DOCS):,}")
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
