"""Executes saved calls of operators in a separate process, and prints the digests of their results.

It is started as a script, with its order as JSON on standard input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_SECONDS = 2.0  # for one call


def main() -> None:
    """Execute the order: in a forked child for each circumstance, so that the framework is imported once."""
    sys.dont_write_bytecode = True
    order = json.load(sys.stdin)
    _load_agent()
    sys.path[:] = order["path"]
    framework = importlib.import_module(order["framework"])
    calls = importlib.import_module(f"_reprokit_agent.operators.{order['adapter']}")
    for name, threads in order["circumstances"]:
        child = os.fork()
        if child == 0:
            try:
                calls.prepare(framework, order, threads)
                _execute_all(calls, framework, order, name)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def _load_agent() -> None:
    """Import the agent's package, from this file's location, under the name that it has in a training."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location("_reprokit_agent", os.path.join(folder, "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _execute_all(calls: Any, framework: Any, order: dict[str, Any], name: str) -> None:
    for number, path in enumerate(order["files"]):
        end = time.monotonic() + MAX_SECONDS
        digests: dict[str, None] = {}
        try:
            with open(path, "rb") as file:
                execute = calls.load(framework, file)
            for _ in range(order["repeats"]):
                digests[execute()] = None
                if time.monotonic() > end:
                    break
        except Exception as error:
            print(f"{path}: {error}", file=sys.stderr)
        else:
            os.write(1, json.dumps([name, number, list(digests)]).encode() + b"\n")


if __name__ == "__main__":
    main()
