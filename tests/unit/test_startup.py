"""What record and replay load before the command starts, which every training waits for: it does not creep back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The audit event of the command's start; the modules that are there by then are written to a file.
DRIVER = """
import os, sys
started = []
loaded = os.path.abspath("../loaded")  # elsewhere, or it would be an output of the run

def hook(event, arguments):
    if event == "subprocess.Popen" and not started:
        started.append(arguments)
        with open(loaded, "w") as file:
            file.write("\\n".join(sys.modules))

sys.addaudithook(hook)
from reprokit.cli.main import main
main(sys.argv[1:])
"""

BEFORE_RECORD = {
    "_shim", "_shim.interface", "agent", "agent.script_api", "cli", "cli.groups", "cli.main", "cli.options",
    "cli.output", "cli.record", "core", "core.bounds", "core.errors", "core.messages", "core.native",
    "core.printable", "core.redaction", "core.untrusted_json", "core.version", "model", "model.environment",
    "model.outputs", "model.plan", "model.run", "model.run_warning", "model.states", "run", "run.command",
    "run.environment", "run.file_digests", "run.host", "run.kernel", "run.part", "run.parts", "run.parts.console",
    "run.parts.environment",
    "run.parts.found_files", "run.parts.shim", "run.platform_support", "run.process", "run.run", "run.rundirectory",
    "run.shim_plan", "run.supervisor", "run_files", "run_files.home", "run_files.rundir", "run_files.unflushed",
    "run_files.variables",
}  # fmt: skip
BEFORE_REPLAY = BEFORE_RECORD - {"cli.record", "run.parts.found_files"} | {
    "cli.replay", "entropy", "entropy.files", "entropy.pool", "entropy.profile",
    "run.compute_pins", "run.orders", "run.parts.seeds", "run.replay_plan", "run.seeds",
}  # fmt: skip
BEFORE_REPLAY_OF_OUTPUTS = BEFORE_REPLAY | {
    "run.aside_place", "run.interruption", "run.starting_files", "run.stragglers", "run_files.names",
}  # fmt: skip
# Each of them takes 1 to 70 ms, and what it is for can be had later or without it.
TOO_SLOW = {
    "bz2", "cffi", "csv", "dataclasses", "importlib.metadata", "lzma", "multiprocessing", "psutil", "random", "rich",
    "shutil", "socket", "tempfile", "unittest", "zipfile",
}  # fmt: skip


def loaded_before(directory: Path, *arguments: str) -> set[str]:
    """The modules that are there when the command starts."""
    place = directory / "place"
    place.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", DRIVER, *arguments], cwd=place, check=True, capture_output=True)
    return set((directory / "loaded").read_text().split())


@pytest.mark.parametrize(
    ("recorded", "arguments", "expected"),
    [
        ([], ["record", "--", "true"], BEFORE_RECORD),
        (["true"], ["replay", "last"], BEFORE_REPLAY),
        (["sh", "-c", "echo 1 > out; mkdir new"], ["replay", "last"], BEFORE_REPLAY_OF_OUTPUTS),
    ],
)
def test_little_is_loaded_before_the_command_starts(
    tmp_path: Path, recorded: list[str], arguments: list[str], expected: set[str]
) -> None:
    if recorded:
        loaded_before(tmp_path, "record", "--", *recorded)
    loaded = loaded_before(tmp_path, *arguments)
    own = {name.removeprefix("reprokit.") for name in loaded if name.startswith("reprokit.")}
    assert own == expected, "another module of reprokit's is imported before the start: import it where it is needed"
    loaded -= installed()
    assert not TOO_SLOW & loaded
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert others <= {"reprokit", "click", "msgspec", "_cffi_backend", "typing_extensions"}


def installed() -> set[str]:
    """What the environment loads into every Python: editable installs, coverage."""
    code = "import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
