"""Lines of losses that compiled code writes: what the journal would have written, for any number."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

import pytest

from reprokit.agent.core.exact_values import from_number
from reprokit.agent.core.journal import Journal
from reprokit.core.native import trail_path

FORMS = {"float32": ">f", "float64": ">d"}
SPECIAL = [0.0, -0.0, 1.0, -0.1, 0.5, 2.0**-149, 5e-324, 3.4028234663852886e38, 1e15, 1e16, 1e-5, 9.9e-6, 123456792.0]
NOT_FINITE = [math.inf, -math.inf, math.nan]


def numbers(dtype: str) -> list[float]:
    """Some that matter, and any bits at all."""
    form, size = FORMS[dtype], struct.calcsize(FORMS[dtype])
    drawn = random.Random(7)
    found = [struct.unpack(form, drawn.randbytes(size))[0] for _ in range(2000)]
    found += [struct.unpack(form, struct.pack(form, drawn.expovariate(1)))[0] for _ in range(2000)]
    return [*[struct.unpack(form, struct.pack(form, number))[0] for number in SPECIAL], *NOT_FINITE, *found]


def written(
    tmp_path: Path, plan: dict[str, str], losses: list[tuple[str, float]], name: str
) -> list[dict[str, object]]:
    """The lines of a journal that was given these losses."""
    tmp_path.mkdir()
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    journal = Journal(str(tmp_path), '0/"1"')
    for step, (dtype, number) in enumerate(losses):
        journal.write_loss(name, step, dtype, number)
    journal.close()
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("name", ["loss", 'loss@"ü"'])
def test_a_line_says_what_the_journal_would_have_said(tmp_path: Path, dtype: str, name: str) -> None:
    losses = [(dtype, number) for number in numbers(dtype)]
    ours = written(tmp_path / "ours", {"library": str(trail_path())}, losses, name)
    plain = written(tmp_path / "plain", {}, losses, name)
    assert len(ours) == len(plain) == len(losses)
    for mine, other, (_, number) in zip(ours, plain, losses, strict=True):
        values = mine.pop("value"), other.pop("value")
        assert isinstance(values[0], dict)
        assert isinstance(values[1], dict)
        assert abs(float(str(mine.pop("t"))) - float(str(other.pop("t")))) < 1000
        assert mine == other
        assert values[0].keys() == values[1].keys()
        assert (values[0]["dtype"], values[0]["bits"]) == (dtype, from_number(dtype, number)["bits"])
        assert_means(values[0]["decimal"], dtype, number)


def assert_means(decimal: float | None, dtype: str, number: float) -> None:
    if decimal is None:
        assert not math.isfinite(number)
    else:
        assert struct.pack(FORMS[dtype], decimal) == struct.pack(FORMS[dtype], number)


def test_a_comma_as_the_decimal_point_changes_nothing(tmp_path: Path) -> None:
    import locale

    before = locale.setlocale(locale.LC_NUMERIC)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
            break
        except locale.Error:
            continue
    try:
        (line,) = written(tmp_path / "run", {"library": str(trail_path())}, [("float32", 0.5)], "loss")
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
    assert line["value"] == {"dtype": "float32", "bits": "3f000000", "decimal": 0.5}
