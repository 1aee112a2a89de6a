"""Who asked for entropy: by library and meaning, as far as these are known."""

from __future__ import annotations

import pytest

from reprokit.entropy import request_counts
from reprokit.entropy.request_counts import OTHER, Requester, RequestTotals, RunRequests, library_of, purpose_of
from reprokit.evidence.report import html, markdown
from reprokit.evidence.report.gather import gather
from tests.support import Reprokit


@pytest.mark.parametrize(
    ("module", "program", "library"),
    [
        ("/usr/lib/libpython3.11.so.1.0", "/usr/bin/python3.11", "Python"),
        ("", "/usr/bin/python3.12", "Python"),
        ("/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3", "the C library"),
        ("/v/torch/lib/libc10.so", "", "PyTorch"),
        ("/v/torch/_C.cpython-311-x86_64-linux-gnu.so", "", "PyTorch"),
        ("/usr/lib/libstdc++.so.6", "", "C++"),
        ("/v/own/_fast.cpython-311-x86_64-linux-gnu.so", "", "_fast"),
        ("/usr/lib/libcrypto.so.3", "", "OpenSSL"),
        ("", "/home/a/trainer", "trainer"),
        ("", "", "not told apart"),
    ],
)
def test_libraries_have_their_names(module: str, program: str, library: str) -> None:
    assert library_of(module, program) == library


def test_a_size_that_many_have_means_nothing() -> None:
    assert purpose_of("Python", "getrandom", 24).endswith("as Python's hash seed takes them")
    assert "default_rng" in purpose_of("Python", "getrandom", 16)
    assert purpose_of("Python", "getrandom", 17) == "os.urandom"
    assert purpose_of("Python", "device", 24) == OTHER
    assert purpose_of("trainer", "getrandom", 24) == OTHER


def test_purposes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_counts, "MAX_PURPOSES", 3)
    requests = RunRequests()
    for number in range(9):
        asker = Requester("0", 0, "m", f"/p{number}", "", 0, "getrandom")
        requests.add_purpose(asker, RequestTotals(1, 8, 0))
    assert len(requests.purposes) == 4
    assert sum(asked.requests for asked in requests.purposes.values()) == 9


def test_a_page_says_what_a_real_training_asked_for(real: Reprokit) -> None:
    facts = gather([real.directory / "first"])
    asked = {(group.library, group.purpose): group.requests for group in facts.entropy.purposes}
    assert asked["Python", "24 bytes, as Python's hash seed takes them"] >= 1
    assert asked["Python", "a generator of `random` without a seed"] >= 1
    assert sum(asked.values()) == facts.entropy.requests
    page = html.page(facts)
    assert "Python&#39;s hash seed" in page
    assert "for what (inferred)" in page
    assert "for what (inferred)" in markdown.page(facts)
    assert "offset 0x" not in page
