"""Executes one command of reprokit's for the Python interface: python command_process.py DESCRIPTOR NAME WORDS...

Its result, or its error, is written to the descriptor as JSON.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from signal import SIGTERM
from typing import Any


def main(words: list[str]) -> None:
    """Execute the command; a launching one ends this process as its training ended."""
    from click.exceptions import Exit

    from reprokit.cli.main import as_own_error, reprokit
    from reprokit.cli.output import RESULT
    from reprokit.run.kernel import end_with_parent

    os.setpgid(0, 0)  # a terminal then signals the caller alone, which hands it on once
    end_with_parent(SIGTERM)
    descriptor = int(words[0])
    os.set_inheritable(descriptor, False)

    def hand_over(content: Any) -> None:
        import msgspec

        data = msgspec.json.encode(content, enc_hook=str)
        with open(os.dup(descriptor), "wb") as file:
            file.write(data)

    try:
        with reprokit.make_context("reprokit", words[1:]) as context:
            context.meta[RESULT] = lambda result: hand_over({"result": result})
            reprokit.invoke(context)
    except Exit:
        pass  # its result says how it ended
    except Exception as error:
        own = as_own_error(error)
        if own is None:
            raise
        hand_over({"failure": {"error": type(own).__name__, "text": str(own)}})


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # reprokit as the caller has it, and no module of this folder
    main(sys.argv[1:])
