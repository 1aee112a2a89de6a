"""The import hook: every way in which a watched module is found, loaded, looked at and loaded again."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.agent.training import Training
from tests.support import training_text

PACKAGE = "__version__ = '9.8'\nimport sys\n"
EVERY_WAY = {
    "import": "import xgboost",
    "reload": "import xgboost, importlib; assert importlib.reload(xgboost) is xgboost",
    "find_spec": "import importlib.util; assert importlib.util.find_spec('xgboost').origin.endswith('__init__.py')\n"
    "import xgboost",
    "lazy": "import importlib.util, sys\n"
    "spec = importlib.util.find_spec('xgboost')\n"
    "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
    "module = importlib.util.module_from_spec(spec)\n"
    "sys.modules['xgboost'] = module\n"
    "spec.loader.exec_module(module)\n"
    "assert module.__version__ == '9.8'",
    "by hand": "import importlib.util\n"
    "spec = importlib.util.find_spec('xgboost')\n"
    "spec.loader.exec_module(importlib.util.module_from_spec(spec))",
    "pkgutil": "import pkgutil\n"
    "assert 'xgboost' in [module.name for module in pkgutil.iter_modules()]\n"
    "import xgboost\n"
    "assert pkgutil.get_data('xgboost', 'data.txt') == b'data'",
    "loader": "import xgboost, importlib.machinery\n"
    "assert type(xgboost.__spec__.loader) is importlib.machinery.SourceFileLoader\n"
    "assert 'exec_module' not in vars(xgboost.__spec__.loader)\n"
    "assert xgboost.__loader__ is xgboost.__spec__.loader",
}


@pytest.fixture
def packages(any_training: Training) -> Path:
    any_training.write("packages/xgboost/__init__.py", PACKAGE)
    any_training.write("packages/xgboost/__main__.py", "print('as a program')")
    any_training.write("packages/xgboost/data.txt", "data")
    return any_training.directory / "packages"


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_module_is_noticed_however_it_is_imported(any_training: Training, packages: Path, way: str) -> None:
    outcome = any_training.run(EVERY_WAY[way], python_path=[packages])
    assert (outcome.status, outcome.errors) == (0, "")
    lines = outcome.of("framework", name="xgboost")
    assert len(lines) == (2 if way == "reload" else 1)
    assert lines[0]["version"] == "9.8"
    assert not outcome.of("warning")


def test_a_package_still_runs_as_a_program(any_training: Training, packages: Path) -> None:
    outcome = any_training.command([any_training.python, "-m", "xgboost"], any_training.environment([packages]))
    assert (outcome.status, outcome.output) == (0, "as a program\n")


def test_a_module_of_a_zip_file_still_imports(any_training: Training) -> None:
    archive = any_training.directory / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("xgboost/__init__.py", PACKAGE)
    outcome = any_training.run("import xgboost; print(xgboost.__version__)", python_path=[archive])
    assert (outcome.status, outcome.output, outcome.errors) == (0, "9.8\n", "")
    assert outcome.of("framework", name="xgboost") or outcome.of("warning")


def test_a_module_that_fails_fails_as_before(any_training: Training, packages: Path) -> None:
    any_training.write("packages/xgboost/__init__.py", "raise ImportError('no such library')")
    outcome = any_training.run(
        "try:\n    import xgboost\nexcept ImportError as error:\n    print(error)", python_path=[packages]
    )
    assert outcome.output == "no such library\n"
    assert not outcome.of("framework")


def test_finders_that_ask_all_others_do_not_recurse(any_training: Training, packages: Path) -> None:
    outcome = any_training.run(training_text("imported_package.py", "asking"), python_path=[packages])
    assert outcome.output == "9.8\n"
    assert outcome.one("framework", name="xgboost")


def test_a_loader_that_cannot_be_listened_to_is_left_alone(any_training: Training) -> None:
    outcome = any_training.run(training_text("imported_package.py", "loading"))
    assert outcome.output == "9.8\n"
    assert "cannot be listened to" in outcome.one("warning")["text"]
