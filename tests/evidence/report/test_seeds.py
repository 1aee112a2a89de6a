"""How a training was seeded: the calls of its script with their arguments, and the variables that it read."""

from __future__ import annotations

import sys

from reprokit.evidence.report import html, markdown
from reprokit.evidence.report.gather import gather
from reprokit.verify.categories.seeds import MAX_CALLS
from tests.support import Reprokit
from tests.verify.runs import Building

SCRIPT = """
import os, random
seed = int(os.environ.get("SEED", "7"))
random.seed(seed)
open("m.bin", "w").write(str(random.random()))
"""
LIBRARY = "torch/utils/data/sampler.py:165"


def test_the_script_s_seeds_and_variables_are_listed(reprokit: Reprokit) -> None:
    reprokit.script("train.py", SCRIPT)
    assert reprokit.run("record", "-o", "a", "--", sys.executable, "train.py").returncode == 0
    facts = gather([reprokit.directory / "a"])
    assert facts.trained.seeds == ("random.seed(7), at train.py:4",)
    assert facts.trained.variables == ("SEED (unset), at train.py:3",)
    shown = reprokit.run("report", "a").stdout
    assert "random.seed(7), at train.py:4" in shown
    for page in (markdown.page(facts).replace("\\", ""), html.page(facts)):
        assert "random.seed(7), at train.py:4" in page
        assert "SEED (unset), at train.py:3" in page


def test_calls_of_libraries_are_counted_behind_those_of_the_script(pair: tuple[Building, Building]) -> None:
    run = pair[0]
    for number in range(4):
        run.add("seed", call="torch.Generator.manual_seed", argument=str(number), where=LIBRARY, value=number)
    for place in ("train.py:2", "train.py:2", "sweep.py:9"):
        run.add("seed", call="torch.manual_seed", argument="0", where=place, value=0)
    seeds = gather([run.write()]).trained.seeds
    first, second, libraries = (text for text in seeds if "manual_seed" in text)
    assert (first, second) == ("torch.manual_seed(0), at train.py:2 (2 times)", "torch.manual_seed(0), at sweep.py:9")
    assert libraries == f"4 calls of libraries, first torch.Generator.manual_seed(0), at {LIBRARY}"


def test_many_calls_are_bounded_and_said(pair: tuple[Building, Building]) -> None:
    run = pair[0]
    for number in range(MAX_CALLS + 12):
        run.add("seed", call="random.seed", argument=f"{number}" * 9, where="other.py:1", value=number)
    seeds = gather([run.write()]).trained.seeds
    assert len(seeds) <= MAX_CALLS + 2
    assert "calls with further arguments or at further places" in seeds[-1]
