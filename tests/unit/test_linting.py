"""What make does: make lint needs no framework, as who changes a text waits for none to be installed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from reprokit.core import toml_text

ROOT = Path(__file__).parents[2]
CONFIGURATION = toml_text.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]
FRAMEWORKS = {"torch", "tensorflow", "keras", "xgboost", "xgboost-cpu", "lightgbm", "jax", "scikit-learn", "scipy"}


def installed_with(extra: str) -> Iterator[str]:
    """The names of the packages of an extra, and of those that it names."""
    for requirement in PROJECT["optional-dependencies"][extra]:
        found = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement)
        assert found is not None
        if found[1] == PROJECT["name"]:
            for other in found[2].split(","):
                yield from installed_with(other)
        else:
            yield found[1]


def test_style_and_types_are_checked_without_a_framework() -> None:
    assert set(installed_with("test")) >= FRAMEWORKS - {"keras", "xgboost", "scipy"}
    assert {"mypy", "ruff"} <= set(installed_with("lint"))
    assert not FRAMEWORKS & set(installed_with("lint"))


def test_types_are_asked_of_no_package_that_make_lint_does_not_install() -> None:
    types = CONFIGURATION["tool"]["mypy"]
    texts = (
        path.read_text()
        for folder in types["files"]
        for path in (ROOT / folder).rglob("*.py")
        if not any(re.search(pattern, str(path.relative_to(ROOT))) for pattern in types["exclude"])
    )
    imports = {name for text in texts for name in re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)}
    absent = {*installed_with("test"), *installed_with("test-all")} - {*installed_with("lint")}
    modules = {name for name, sources in packages_distributions().items() if absent & {*map(str.lower, sources)}}
    assert {"torch", "lightgbm", "PIL"} <= imports & modules
    assert {f"{name}.*" for name in imports & modules} <= {*types["overrides"][0]["module"]}


def test_make_lint_does_not_install_what_the_tests_need() -> None:
    rule = re.search(r"^\$\(VENV\)/\.lint:(.*)\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule is not None
    assert rule[1].split() == ["$(VENV)/.installed"]
    assert "'.[lint]'" in rule[2]


def test_what_make_would_run_is_whole_for_the_shell() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "install" in targets
    recipes = subprocess.run(["make", "-nB", *targets], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert recipes.returncode == 0, recipes.stderr
    read = subprocess.run(["sh", "-n"], input=recipes.stdout, capture_output=True, text=True, timeout=60)
    assert (read.returncode, read.stderr) == (0, "")
