"""Wheel and editable install, in environments of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.interpreters import available
from tests.support import COMMAND

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).parent.parent.parent
SOURCES = (
    *("setup.py", "pyproject.toml", "CMakeLists.txt", "MANIFEST.in", "README.md", "LICENSE", "docs/errors.md"),
    *("completions", "native", "profiles", "reprokit"),
)

pytestmark = pytest.mark.slow


def clean_clone(directory: Path) -> Path:
    """The sources alone, as a clean clone has them, below a path with a space."""
    place = directory / "clean clone"
    place.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "_shim", *(["profiles"] if name == "reprokit" else []))
            shutil.copytree(source, place / name, ignore=ignored)
        else:
            (place / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, place / name)
    return place


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return clean_clone(tmp_path)


def build_wheel(checkout: Path, directory: Path, **variables: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", str(directory)]
    subprocess.run([*command, str(checkout)], check=True, capture_output=True, env={**os.environ, **variables})
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that sees the packages of this one, so that nothing is downloaded."""
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = place / "lib" / version / "site-packages"
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def pip(environment: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(environment), *arguments]
    flags = ["--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--quiet", "--ignore-installed"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def works(environment: Path, directory: Path, package: Path) -> None:
    """The command of that environment records, with that package."""
    python, command = str(environment / "bin" / "python"), str(environment / "bin" / "reprokit")
    look = [python, "-c", "import reprokit; print(reprokit.__path__[0])"]
    where = subprocess.run(look, cwd=directory, capture_output=True, text=True)
    assert Path(where.stdout.strip()).resolve() == package.resolve()
    done = subprocess.run(
        [command, "record", "-o", "run", "--", "sh", "-c", "exit 7"], cwd=directory, capture_output=True
    )
    assert done.returncode == 7
    assert b"warning" not in done.stderr


def test_a_wheel_holds_everything_and_works(checkout: Path, environment: Path, tmp_path: Path) -> None:
    wheel = build_wheel(checkout, tmp_path)
    assert wheel.name.startswith("reprokit_harness-")
    assert "-py3-none-linux_" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "_shim/liburandom_hook.so",
        "_shim/liburandom_hook_loader.so",
        "_shim/libreprokit_supervisor.so",
        "_shim/libreprokit_trail.so",
        "_shim/kernel.cu",
        "_shim/digest.h",
        "_shim/urandom_hook.h",
        "_shim/interface.py",
        "profiles/README.md",
        "profiles/schema.json",
        "profiles/pytorch.toml",
        "patches/catalogue.toml",
        "run_files/kept_variables.txt",
        "diff/formats/onnx.schema",
        "schemas/knowledge.schema.json",
        "agent/bootstrap/sitecustomize.py",
        "schemas/verify.schema.json",
        "verify/categories/environment_rules.json",
        "schemas/study-1.schema.json",
        "study/templates/cpu.toml",
        "study/templates/methods.txt",
        "py.typed",
    ):
        assert f"reprokit/{name}" in names
    assert not [name for name in names if name.startswith(("tests/", "native/", "examples/"))]
    pip(environment, "install", str(wheel))
    assert "reprokit" in (environment / "share/bash-completion/completions/reprokit").read_text()
    (site,) = environment.glob("lib/python3*/site-packages")
    works(environment, tmp_path, site / "reprokit")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    return build_wheel(clean_clone(directory), directory)


def is_shared(python: str) -> bool:
    """Whether it was built with --enable-shared, as in official images: little room for thread-local variables."""
    code = "import sysconfig; print(sysconfig.get_config_var('Py_ENABLE_SHARED'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout == "1\n"


def python_named(name: str) -> str:
    """The Python of this version, or the newest shared one; skips where this machine has none."""
    found = {version: path for version, path in available().items() if version in SUPPORTED}
    fitting = [path for version, path in found.items() if name == version or (name == "shared" and is_shared(path))]
    if not fitting:
        pytest.skip(f"there is no {'shared Python' if name == 'shared' else f'Python {name}'} on this machine")
    return fitting[-1]


@pytest.mark.parametrize("name", ["shared", *(pytest.param(name, marks=pytest.mark.extended) for name in SUPPORTED)])
def test_an_installation_records_and_replays(name: str, wheel: Path, tmp_path: Path) -> None:
    python, place = python_named(name), tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode and not (list(tmp_path.glob("environment/lib/*/site-packages/msgspec"))):
        pytest.skip(f"the packages that it needs cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    command = str(place / "bin" / "reprokit")
    script = "import os, random; print(os.urandom(4).hex(), random.random())"
    said = []
    for words in (
        ("record", "-o", "first", "--", str(place / "bin" / "python"), "-c", script),
        ("replay", "first", "-o", "second"),
        ("verify", "first", "second"),
    ):
        done = subprocess.run([command, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[2].startswith("identical: ")


@pytest.mark.extended
def test_an_editable_install_builds_the_shim_in_the_checkout(checkout: Path, environment: Path, tmp_path: Path) -> None:
    pip(environment, "install", "-e", str(checkout))
    assert (checkout / "reprokit" / "_shim" / "liburandom_hook.so").exists()
    assert (checkout / "reprokit" / "profiles" / "README.md").exists()
    works(environment, tmp_path, checkout / "reprokit")


def test_without_a_compiler_what_reads_runs_can_be_installed(checkout: Path, environment: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        command = [COMMAND, "record", "-o", name, "--", "sh", "-c", "echo 1 > out"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path)]
    # A directory of programs without a compiler.
    (tmp_path / "bin").mkdir()
    bare = {**os.environ, "PATH": str(tmp_path / "bin")}
    refused = subprocess.run([*command, str(checkout)], env=bare, capture_output=True, text=True)
    assert "or set REPROKIT_PURE=1 for what reads runs" in refused.stdout + refused.stderr
    subprocess.run([*command, str(checkout)], env={**bare, "REPROKIT_PURE": "1"}, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    pip(environment, "install", str(wheel))

    def status(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(environment / "bin" / "reprokit"), *words], cwd=tmp_path, env=bare, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    assert status("verify", "first", "second")[1].startswith("identical: ")
    for words in (
        ("show", "first"),
        ("report", "first", "second"),
        ("diff", "first/outputs", "second/outputs"),
        ("ls",),
    ):
        assert status(*words)[0] == (2 if words == ("ls",) else 0), words
    numbers = np.ones(4, np.float32)
    np.save(tmp_path / "one.npy", numbers)
    np.save(tmp_path / "other.npy", np.nextafter(numbers, 2, where=[False, True, False, False], out=numbers.copy()))
    code, said = status("diff", "one.npy", "other.npy")
    assert code == 1
    assert "1 of 4 elements of float32 [4] differs" in said
    assert "1 ULP" in said
    code, said = status("record", "--", sys.executable, "-V")
    assert code == 125
    assert "reprokit: shim: " in said


def test_a_source_distribution_is_complete(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    for name in names:
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)],
        cwd=tmp_path / "clone",
        check=True,
        capture_output=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    assert names - held == set()


@pytest.mark.extended
@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_wheels_are_for_old_releases_of_glibc(machine: str, number: int, checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="the compiler that make wheel installs is not installed")
    if not shutil.which("objdump"):
        pytest.skip("there is no objdump to read symbols with")
    wheel = build_wheel(checkout, tmp_path, REPROKIT_TARGET=machine)
    assert wheel.name.endswith(f"-py3-none-linux_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "content", libraries)
    assert len(libraries) == 6
    for name in libraries:
        path = tmp_path / "content" / name
        assert int.from_bytes(path.read_bytes()[18:20], "little") == number  # e_machine of its ELF header
        symbols = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", symbols)}
        assert max(versions, default=(0,)) <= (2, 17), name


def test_make_has_the_folder_that_its_recipes_write_into() -> None:
    for recipe in (ROOT / "Makefile").read_text().split("\n\n"):
        first = re.search(r">build/", recipe)
        assert first is None or re.search(r"mkdir -p [^\n]*\bbuild\b", recipe[: first.start()]), recipe
