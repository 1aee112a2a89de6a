"""The process that searches lines by the user's regular expressions, some of which may never come to an end.

Started by verify.pattern_search as a script, with the standard library alone. Reads a JSON object with the seconds of
processor time that it may take, expressions and lines. Writes a line for each expression: for each line the spans.
"""

from __future__ import annotations

import json
import re
import sys

LOOKED_AT = 4096  # characters of a line


def main() -> None:
    """Answer the one request on standard input."""
    request = json.load(sys.stdin)
    limit(request["seconds"])
    lines = [line[:LOOKED_AT] for line in request["lines"]]
    for expression in request["expressions"]:
        pattern = re.compile(expression)
        print(json.dumps([spans(pattern, line) for line in lines]), flush=True)


def spans(pattern: re.Pattern[str], line: str) -> list[list[int]]:
    """Return start and end of each match that is not empty, of matches side by side as one."""
    found: list[list[int]] = []
    for match in pattern.finditer(line):
        start, end = match.span()
        if found and found[-1][1] == start:
            found[-1][1] = end
        elif end > start:
            found.append([start, end])
    return found


def limit(seconds: int) -> None:
    """End this process after so much processor time, where the system can do that."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    bound = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
