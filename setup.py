"""Builds the shim with CMake and puts it, its header and the determinism profiles into the package."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent.resolve()
SHIM = "liburandom_hook.so"
LOADER = "liburandom_hook_loader.so"  # what LD_PRELOAD names
SUPERVISOR = "libreprokit_supervisor.so"
ARTIFACTS = "libreprokit_artifacts.so"
TRAIL = "libreprokit_trail.so"
STEP = "reprokit_step.abi3.so"  # built where CPython's headers are
HEADER = "urandom_hook.h"
ARTIFACTS_HEADER = "artifacts/compare.h"
TRAIL_SOURCES = ("trail/kernel.cu", "trail/digest.h")  # compiled where a training uses a GPU
INTERFACE = "interface.py"
ARTIFACTS_INTERFACE = "artifacts_interface.py"
ERRORS = "docs/errors.md"  # for reprokit help
PROFILE_SUFFIXES = {".toml", ".json", ".md"}


TARGET = os.environ.get("REPROKIT_TARGET", "")  # x86_64 or aarch64: built for it by PyPI's ziglang, wherever this runs
TARGET_GLIBC = "2.28"  # what it then asks for at most: Debian 10, RHEL 8


def target_options() -> list[str]:
    """The options of CMake with which zig compiles for another machine, or another glibc, than those here."""
    if not TARGET:
        return []
    try:
        import ziglang
    except ImportError:
        raise SystemExit("reprokit: REPROKIT_TARGET needs a compiler: pip install ziglang") from None
    zig = Path(ziglang.__file__).with_name("zig")
    return [
        f"-DCMAKE_C_COMPILER={zig};cc;-target;{TARGET}-linux-gnu.{TARGET_GLIBC}",
        f"-DREPROKIT_LINKER={zig};ld.lld",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",  # zig adds what debuggers read
        "-DCMAKE_MODULE_LINKER_FLAGS=-s",
        "-DCMAKE_SYSTEM_NAME=Linux",
        f"-DCMAKE_SYSTEM_PROCESSOR={TARGET}",
    ]


def shim_is_supported() -> bool:
    """Whether this is Linux with glibc on a processor that the shim knows."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return False
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):  # musl knows no such name
        return False


def python_headers() -> str:
    """The directory of CPython's headers; empty where they are not installed, as without a python3-dev package."""
    found = sysconfig.get_path("include")
    return found if (Path(found) / "Python.h").exists() else ""


def is_built() -> bool:
    """Whether the shim is built: on a platform that it supports, unless REPROKIT_PURE=1 leaves it out."""
    return shim_is_supported() and os.environ.get("REPROKIT_PURE") != "1"


def find_cmake() -> str:
    """The cmake to build with, or a line that says what to install."""
    cmake = shutil.which("cmake")
    if cmake is None or (shutil.which("cc") is None and shutil.which("gcc") is None and "CC" not in os.environ):
        advice = "install gcc, cmake and make; or set REPROKIT_PURE=1 for what reads runs: verify, show, report"
        raise SystemExit(f"reprokit: building the shim needs a C compiler and cmake: {advice}")
    return cmake


def libraries() -> tuple[str, ...]:
    """What CMake builds."""
    return (SHIM, LOADER, SUPERVISOR, ARTIFACTS, TRAIL, *([STEP] if python_headers() else []))


class BuildShim(Command):
    """Part of ``build``: everything in the package that is not Python."""

    description = "build the shim and copy the package data"
    user_options = [
        ("build-lib=", "d", "directory to build into"),
        ("build-temp=", "t", "directory for what only the build needs"),
        ("editable-mode", "e", "build into the source tree"),
    ]
    boolean_options = ["editable-mode"]

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.build_temp: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))

    @property
    def package(self) -> Path:
        return ROOT / "reprokit" if self.editable_mode else Path(str(self.build_lib)) / "reprokit"

    def run(self) -> None:
        target = self.package / "_shim"
        target.mkdir(parents=True, exist_ok=True)
        if is_built():
            self.build_shim(target)
        copy_sources([ROOT / "native" / name for name in (HEADER, ARTIFACTS_HEADER)], target)
        write_interfaces(target)
        if self.editable_mode:
            link_profiles(self.package / "profiles")
        else:
            copy_profiles(self.package / "profiles")
            shutil.copyfile(ROOT / ERRORS, self.package / "errors.md")  # a checkout has it in docs

    def build_shim(self, target: Path) -> None:
        work = Path(str(self.build_temp)).resolve() / (f"shim-{TARGET}" if TARGET else "shim")
        work.mkdir(parents=True, exist_ok=True)
        cmake = find_cmake()
        headers = python_headers()
        if not headers:
            self.warn(f"no Python.h: {STEP} is left out, and small trainings cost more")
        options = ["-DCMAKE_BUILD_TYPE=Release", f"-DREPROKIT_PYTHON_INCLUDE={headers}", *target_options()]
        subprocess.run([cmake, "-S", str(ROOT), "-B", str(work), *options], check=True)
        subprocess.run([cmake, "--build", str(work), "--config", "Release"], check=True)
        sources = [ROOT / "native" / name for name in TRAIL_SOURCES]
        copy_sources([*(work / name for name in libraries()), *sources], target)

    def get_source_files(self) -> list[str]:
        native = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "native").rglob("*.[ch]*"))
        return ["CMakeLists.txt", ERRORS, *native, *(f"profiles/{name}" for name in profile_names())]

    def get_outputs(self) -> list[str]:
        built = (*libraries(), "kernel.cu", "digest.h") if is_built() else ()
        files = (*built, HEADER, "compare.h", INTERFACE, ARTIFACTS_INTERFACE)
        names = [f"_shim/{name}" for name in files] + [f"profiles/{name}" for name in profile_names()]
        return [str(self.package / name) for name in (*names, *([] if self.editable_mode else ["errors.md"]))]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


def copy_sources(sources: list[Path], target: Path) -> None:
    """Copy files by renaming: a process that has the old library mapped keeps it whole."""
    for source in sources:
        partial = target / f"{source.name}.partial"
        shutil.copyfile(source, partial)
        partial.replace(target / source.name)


def write_interfaces(target: Path) -> None:
    """The headers as cffi has read them, so that no run waits for that."""
    sys.path.insert(0, str(ROOT))
    from reprokit.core import native

    for header, interface in ((HEADER, INTERFACE), (ARTIFACTS_HEADER, ARTIFACTS_INTERFACE)):
        module = f"reprokit._shim.{interface.removesuffix('.py')}"
        parsed = native.parsed_header(module, ROOT / "native" / header)  # not one of an earlier build
        parsed.emit_python_code(str(target / interface))


def profile_names() -> list[str]:
    return sorted(path.name for path in (ROOT / "profiles").iterdir() if path.suffix in PROFILE_SUFFIXES)


def copy_profiles(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in profile_names():
        shutil.copyfile(ROOT / "profiles" / name, target / name)


def link_profiles(target: Path) -> None:
    """In an editable install reprokit/profiles is the checkout's own directory."""
    if not target.exists():
        target.symlink_to(os.path.join("..", "profiles"), target_is_directory=True)


class Build(build):
    """The usual build and the shim."""

    sub_commands = [*build.sub_commands, ("build_shim", None)]


class PlatformDistribution(Distribution):
    """A distribution that holds a library where the shim is built, and is pure elsewhere."""

    def has_ext_modules(self) -> bool:
        return is_built()


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3: the shim is not an extension module."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not is_built()

    def get_tag(self) -> tuple[str, str, str]:
        _, _, system = super().get_tag()
        return ("py3", "none", (f"linux_{TARGET}" if TARGET else system) if is_built() else "any")


def shared_files() -> list[tuple[str, list[str]]]:
    """Completion for shells, and the manual pages that make man has written."""
    pages = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "man").glob("*.1"))]
    return [
        ("share/bash-completion/completions", ["completions/reprokit"]),
        ("share/zsh/site-functions", ["completions/_reprokit"]),
        ("share/fish/vendor_completions.d", ["completions/reprokit.fish"]),
        ("share/man/man1", pages),
    ]


setup(
    data_files=shared_files(),
    cmdclass={"build": Build, "build_shim": BuildShim, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
