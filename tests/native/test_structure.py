"""How native/ is cut: which of its files may use which others, by what the linker and the preprocessor see."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.native_sources import NATIVE

HOST = NATIVE / "recorder" / "host.h"
PYTHON = Path(sysconfig.get_path("include"))
ALONE = ("artifacts", "loader") if (PYTHON / "Python.h").exists() else ("artifacts", "loader", "python")
SOURCES = sorted(path for path in NATIVE.rglob("*.c") if path.parent.name not in ALONE)
HOSTS = ("shim", "supervisor")  # each is linked with recorder/
# The folders whose headers the files of a folder may include, besides their own and urandom_hook.h.
BELOW = {
    "": {"recorder", "shim"},
    "artifacts": set(),
    "loader": set(),
    "python": {"trail"},
    "recorder": set(),
    "shim": {"recorder"},
    "supervisor": {"recorder"},
    "trail": {"recorder"},
}


@dataclass(frozen=True)
class Symbols:
    """What an object file defines for others, and what it needs of others."""

    defined: frozenset[str]
    needed: frozenset[str]


def room(path: Path) -> str:
    """Return the folder of native/ that a file is in; empty for the top."""
    first, *rest = path.relative_to(NATIVE).parts
    return first if rest else ""


def symbols(source: Path, directory: Path) -> Symbols:
    """Compile a file without optimization, which drops no call, and list its symbols."""
    compiled = directory / ("-".join(source.relative_to(NATIVE).parts) + ".o")
    options = ["-std=gnu11", "-D_GNU_SOURCE", f"-I{NATIVE}", f"-I{PYTHON}", "-O0", "-w"]
    subprocess.run(["gcc", *options, "-c", str(source), "-o", str(compiled)], check=True)
    listed = subprocess.run(["nm", "--format=posix", str(compiled)], capture_output=True, text=True, check=True).stdout
    kinds = [line.split()[:2] for line in listed.splitlines()]
    return Symbols(
        frozenset(name for name, kind in kinds if kind.isupper() and kind != "U"),
        frozenset(name for name, kind in kinds if kind in ("U", "w")),
    )


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Symbols]:
    directory = tmp_path_factory.mktemp("objects")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(SOURCES, pool.map(lambda source: symbols(source, directory), SOURCES), strict=True))


def host_names() -> set[str]:
    """Return the functions and variables that host.h asks for: all that it declares and does not define."""
    text = re.sub(r"/\*.*?\*/", "", HOST.read_text(), flags=re.S)
    text = re.sub(r"\{[^{}]*\}", "{}", text)
    return set(re.findall(r"^(?!static|enum)[^;{}#\n]*?\b(rk_\w+)(?:\([^;{}]*\)|\[\w+\])?;", text, re.M))


def arrows(objects: Mapping[Path, Symbols]) -> dict[Path, set[Path]]:
    """Return the files that each file uses; what the recorder uses of its host by host.h is left out."""
    given = {name: path for path, found in objects.items() for name in found.defined}
    by_host = host_names()
    used: dict[Path, set[Path]] = {path: set() for path in objects}
    for path, found in objects.items():
        for name in found.needed & given.keys():
            if not (room(path) == "recorder" and name in by_host):
                used[path].add(given[name])
    return used


def circle(used: Mapping[Path, Iterable[Path]]) -> list[str]:
    """Return the files of a circle, in its order; empty if there is none."""
    try:
        TopologicalSorter(used).prepare()
    except CycleError as error:
        return [path.relative_to(NATIVE).as_posix() for path in reversed(error.args[1])]
    return []


def of(objects: Mapping[Path, Symbols], *rooms: str) -> dict[Path, Symbols]:
    return {path: found for path, found in objects.items() if room(path) in rooms}


def test_the_top_holds_the_file_that_names_the_shim_and_its_header() -> None:
    assert sorted(path.name for path in NATIVE.iterdir() if path.is_file()) == ["urandom_hook.c", "urandom_hook.h"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rooms", [("", "shim", "recorder"), ("supervisor", "recorder"), ("trail", "recorder"), ("python", "trail")]
)
def test_no_files_of_a_library_use_each_other_in_a_circle(rooms: tuple[str, ...], objects: dict[Path, Symbols]) -> None:
    assert circle(arrows(of(objects, *rooms))) == []


@pytest.mark.slow
def test_a_circle_is_found(objects: dict[Path, Symbols]) -> None:
    shim = of(objects, "", "shim", "recorder")
    lowest, highest = NATIVE / "shim" / "hooks.c", NATIVE / "shim" / "start.c"
    used = arrows(shim)
    used[lowest].add(highest)
    assert {"shim/hooks.c", "shim/start.c"} <= set(circle(used))


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_each_host_defines_what_the_recorder_needs_of_it(host: str, objects: dict[Path, Symbols]) -> None:
    defined = frozenset().union(*(found.defined for found in of(objects, host).values()))
    assert {"rk_start", "rk_process", "rk_identity"} <= host_names()
    assert sorted(host_names() - defined) == []


@pytest.mark.slow
def test_the_recorder_needs_nothing_else_of_a_host_and_all_of_that(objects: dict[Path, Symbols]) -> None:
    recorder = of(objects, "recorder")
    needed = frozenset().union(*(found.needed for found in recorder.values()))
    own = frozenset().union(*(found.defined for found in recorder.values()))
    foreign = {name for name in needed - own if name.startswith(("rk_", "reprokit_"))}
    assert foreign == host_names()


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(.*)"$', path.read_text(), re.M)


@pytest.mark.parametrize("name", sorted(BELOW))
def test_files_include_headers_of_their_own_folder_and_of_those_below(name: str) -> None:
    allowed = {name, *BELOW[name]}
    for path in NATIVE.rglob("*.[ch]"):
        if room(path) == name:
            wrong = [header for header in includes(path) if room(NATIVE / header) not in {*allowed, ""}]
            assert wrong == [], f"{path} includes {wrong}"
            assert all((NATIVE / header).exists() for header in includes(path))


# ---- no header in vain -------------------------------------------------------------------------------------


def code(path: Path) -> str:
    """Return a file without comments, texts and lines of the preprocessor that include."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
    return re.sub(r'^#include.*$|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.M)


def declared(header: Path) -> set[str]:
    """Return the words of a header that others can use: its macros, constants, types, functions and variables."""
    text = code(header)
    words = set(re.findall(r"^#define (\w+)", text, re.M)) | set(re.findall(r"\b(?:struct|enum) \w+(?= \{)", text))
    for constants in re.findall(r"\benum(?: \w+)? \{(.*?)\}", text, re.S):
        words |= set(re.findall(r"[A-Za-z]\w*", constants))
    text = re.sub(r"^#(?:.*\\\n)*.*$|__attribute__\(\(.*?\)\)+|^\w+\(\w+\)$", "", text, flags=re.M)
    text = re.sub(r"\b(?:struct|enum)(?: \w+)? \{(?:[^{}]|\{[^{}]*\})*\}", "", text)
    for statement in re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", ";", text).split(";"):
        words |= set(re.findall(r"^[^(]*?\(?\*?(\w+)(?:\)?\(|\[|\W*$)", statement, re.S))
    return words


def used(path: Path) -> set[str]:
    text = code(path)
    types = set(re.findall(r"\b(?:struct|enum) \w+", text))
    words = set(re.findall(r"(?<![.>])\b\w+", re.sub(r"\b(?:struct|enum) \w+", "", text)))
    hooks = {"RK_REAL"} if any(word.startswith("rk_real_") for word in words) else set()
    names = {"NAMES"} if any(word.startswith("name_of_") for word in words) else set()
    return types | words | hooks | names


def test_no_file_includes_a_header_that_it_does_not_use() -> None:
    in_vain = [
        f"{path.relative_to(NATIVE)} includes {header}"
        for path in sorted(NATIVE.rglob("*.[ch]"))
        for header in includes(path)
        if not declared(NATIVE / header) & used(path) and NATIVE / header != path.with_suffix(".h")
    ]
    assert in_vain == []
