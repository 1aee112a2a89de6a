"""Lists the files of native/."""

from __future__ import annotations

from pathlib import Path

NATIVE = Path(__file__).parent.parent / "native"
SHIM_SOURCES = [NATIVE / "urandom_hook.c", *sorted(NATIVE.glob("recorder/*.c")), *sorted(NATIVE.glob("shim/**/*.c"))]
