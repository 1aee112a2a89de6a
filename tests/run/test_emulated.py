"""The wheel of aarch64, run by qemu-user with the Python of Debian's arm64."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.test_packaging import build_wheel, clean_clone

QEMU = "qemu-aarch64"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
SCRIPT = """
import os, platform, random, uuid
import numpy
print(platform.machine(), os.urandom(8).hex(), random.random(), uuid.uuid4(), numpy.random.default_rng().random())
"""

pytestmark = pytest.mark.extended


def apt(directory: Path, *words: str) -> None:
    """Run apt-get for arm64 with lists and packages of its own, so that nothing of this machine changes."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": directory / "state",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", "-qq", *options, *words], check=True, capture_output=True)


def system(directory: Path) -> Path:
    """A directory with the Python of Debian's arm64, and the libraries that it needs."""
    apt(directory, "update")
    apt(directory, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES)
    for package in (directory / "cache" / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(directory / "root")], check=True)
    return directory / "root"


def test_the_wheel_of_aarch64_records_and_replays(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="the compiler that make wheel installs is not installed")
    missing = [name for name in (QEMU, "apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]}")
    root = system(tmp_path / "debian")
    (python,) = (root / "usr" / "bin").glob("python3.[0-9]*[0-9]")
    wheel = build_wheel(clean_clone(tmp_path), tmp_path, REPROKIT_TARGET="aarch64")
    site = tmp_path / "site"
    platforms = [
        f"--platform={name}_aarch64" for name in ("linux", "manylinux2014", "manylinux_2_17", "manylinux_2_28")
    ]
    place = ["--target", str(site), "--only-binary=:all:", "--python-version", python.name.removeprefix("python")]
    pip = [sys.executable, "-m", "pip", "install", "-qq", *place, *platforms, str(wheel), "numpy"]
    subprocess.run(pip, check=True)
    (tmp_path / "script.py").write_text(SCRIPT)
    emulated = [QEMU, str(python)]
    environment = {**os.environ, "QEMU_LD_PREFIX": str(root), "PYTHONPATH": str(site)}

    def printed(*words: str) -> str:
        command = [*emulated, "-m", "reprokit", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    recorded = printed("record", "-o", "first", "--", *emulated, "script.py")
    assert recorded.startswith("aarch64 ")
    assert printed("replay", "-o", "second", "first") == recorded
    assert printed("record", "-o", "third", "--", *emulated, "script.py") != recorded
    verified = printed("verify", "first", "second")
    assert verified.startswith("identical: ")
    assert "100 % exact" in verified
