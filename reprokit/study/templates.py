"""Writes template studies for a command: the paper's setups for a CPU or a GPU, or a plain one.

The seeds are those of the paper's replication package (github.com/nemo9cby/ICSE2022Rep), "twice each".
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Final

from reprokit.model.plan import name_of

NAMES: Final = ("plain", "cpu", "gpu")


def text(template: str, command: tuple[str, ...]) -> str:
    """Return the study of this template for this command, as TOML."""
    study = Template((Path(__file__).parent / "templates" / f"{template}.toml").read_text(encoding="utf-8"))
    return study.substitute(name=json.dumps(name_of(command)), command=json.dumps(list(command), ensure_ascii=False))
