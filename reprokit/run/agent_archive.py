"""Writes the code of the agent's start into one file, which each Python of a run reads in place of some twenty.

To look for a module takes longer than to run it. The file lies beside the bytecode and is read by
agent/bootstrap/sitecustomize.py, which checks each module against its source as importlib does.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# Prints which modules of the agent a start imports. In a process of its own: the launcher imports no agent.
MODULES = """
import sys
from pathlib import Path
agent = Path(sys.argv[1])
sys.path.insert(0, str(agent.parent))
from agent import registry, start
for module, _ in registry.EACH_PROCESS:
    start.Feature(module + ".start").load()
for name, module in sys.modules.items():
    if name.split(".")[0] == "agent":
        print(name, Path(module.__file__).relative_to(agent))
"""


def write(agent: Path, archive: Path) -> None:
    """Write the file for this interpreter. Raises OSError if it cannot be written."""
    command = [sys.executable, "-I", "-S", "-B", "-c", MODULES, str(agent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    entries = {}
    for line in done.stdout.splitlines():
        module, _, name = line.partition(" ")
        source = agent / name
        found = source.stat()
        code = compile(source.read_bytes(), source, "exec", dont_inherit=True, optimize=0)
        entries[f"_reprokit_{module}"] = (name, found.st_mtime, found.st_size, code)
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
