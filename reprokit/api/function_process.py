"""Calls a function in a process of its own: python function_process.py FOLDER MODULE|SCRIPT.py FUNCTION.

FOLDER is where imports begin. A script is executed first, but for what stands under `if __name__ == "__main__"`. This
runs in the training's interpreter, and needs nothing of reprokit's.
"""

from __future__ import annotations

import importlib
import runpy
import sys


def main(folder: str, place: str, name: str) -> None:
    """Call the function of this qualified name."""
    sys.path[0] = folder
    if place.endswith(".py"):
        names = runpy.run_path(place, run_name="__mp_main__")  # the name that multiprocessing gives it
        first, _, rest = name.partition(".")
        found = names[first]
    else:
        found, rest = importlib.import_module(place), name
    for attribute in filter(None, rest.split(".")):
        found = getattr(found, attribute)
    found()


if __name__ == "__main__":
    main(*sys.argv[1:])
