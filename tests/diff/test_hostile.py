"""Files that are made to hurt get one clear line, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.diff.test_mutations import ACCIDENT

MEMORY = 300 << 20
ROOT = Path(__file__).parents[2]


def test_each_gets_a_clear_line_in_bounded_memory() -> None:
    command = [sys.executable, "-m", "tests.diff.hostile", str(MEMORY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 40
    for name, phrase, verdict, texts in lines:
        assert verdict == "different", name
        assert any(phrase in text for text in texts), (name, phrase, texts)
        for text in texts:
            assert len(text) < 500, name
            assert "\n" not in text, name
            assert not ACCIDENT.search(text), (name, text)
