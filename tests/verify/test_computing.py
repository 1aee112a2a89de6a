"""What libraries computed with, and in which order directories were listed: told, each once, and never a verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import RunDamaged
from reprokit.verify.comparison import Comparison

from .runs import Building

Pair = tuple[Building, Building]
Compare = Callable[[Pair], Comparison]


def environment(comparison: Comparison) -> dict[str, Difference]:
    """The leaves of the environment by name."""
    found = next(child for child in comparison.tree.children if child.name == "environment")
    return {one.name: one for one in found.leaves()}


def tell(run: Building, library: str, process: str = "0", **facts: Any) -> None:
    """The line of a library."""
    run.add("compute", process, name=library, library=library, facts=facts)


def listed(run: Building, directory: str, names: str, order: str, count: int = 3, whole: bool = True) -> None:
    """The line of a listing, its digests made of one letter each."""
    run.add("listing", name=directory, count=count, order=order * 32, names=names * 16, whole=whole)


def test_a_difference_is_told_with_what_it_means(pair: Pair, compared: Compare) -> None:
    tell(pair[0], "torch", threads=8, capability="AVX512", mkl=True)
    tell(pair[1], "torch", threads=2, capability="AVX512", mkl=False)
    comparison = compared(pair)
    assert comparison.identical
    leaves = {name: leaf for name, leaf in environment(comparison).items() if name.startswith("compute")}
    assert leaves.keys() == {"compute.torch.threads", "compute.torch.mkl"}
    threads = leaves["compute.torch.threads"]
    assert (threads.left, threads.right, threads.verdict) == ("8", "2", Verdict.INFORMATION)
    assert threads.can_change_results
    assert "number of threads" in threads.detail


def test_what_is_the_same_is_one_line_a_library(pair: Pair, compared: Compare) -> None:
    for run in pair:
        for process in ("0", "0/1"):
            tell(run, "numpy", process, used=["AVX2", "FMA3"], unused=[])
    leaf = environment(compared(pair))["compute.numpy"]
    assert (leaf.verdict, leaf.left) == (Verdict.IDENTICAL, "used AVX2, FMA3")


def test_many_processes_are_told_together(pair: Pair, compared: Compare) -> None:
    for process in ("0", "0/1"):
        tell(pair[0], "openmp", process, threads=8)
        tell(pair[1], "openmp", process, threads=4)
    assert "compute.openmp.threads (2 processes)" in environment(compared(pair))


def test_a_library_that_one_run_used_is_told(pair: Pair, compared: Compare) -> None:
    tell(pair[1], "mkl", threads=2)
    leaf = environment(compared(pair))["compute.mkl"]
    assert (leaf.left, leaf.right) == ("(none)", "used")


@pytest.mark.parametrize(
    ("right", "meaning"),
    [
        ({"names": "a", "order": "c"}, "the same names in another order"),
        ({"names": "b", "order": "c"}, "other names were listed"),
        ({"names": "a", "order": "c", "count": 4}, "other names were listed"),
        ({"names": "b", "order": "c", "whole": False}, "to the end in one run only"),
    ],
)
def test_listings_that_differ(pair: Pair, compared: Compare, right: dict[str, Any], meaning: str) -> None:
    listed(pair[0], "data", names="a", order="b")
    listed(pair[1], "data", **right)
    comparison = compared(pair)
    leaf = environment(comparison)["listing of data"]
    assert meaning in leaf.detail
    assert leaf.can_change_results
    assert comparison.identical


def test_listings_that_are_the_same_or_in_one_run_only(pair: Pair, compared: Compare) -> None:
    for run in pair:
        listed(run, "data", names="a", order="b")
        listed(run, "labels", names="a", order="b")
    listed(pair[0], "/tmp/one", names="a", order="b")
    leaves = environment(compared(pair))
    assert leaves["directory listings"].left == "2 the same"
    alone = leaves["directories listed in one run only"]
    assert alone.left == "1, first /tmp/one"
    assert not alone.can_change_results


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("compute", {"name": "torch", "library": "torch", "facts": {"threads": {}}}),
        ("compute", {"name": "torch", "library": "torch", "facts": [1]}),
        ("listing", {"name": "a", "count": -1, "order": "0" * 32, "names": "0" * 16, "whole": True}),
        ("listing", {"name": "a", "count": 1, "order": "\x1b[0m", "names": "0" * 16, "whole": True}),
    ],
)
def test_lines_that_make_no_sense_are_damage(pair: Pair, compared: Compare, kind: str, fields: dict[str, Any]) -> None:
    pair[0].add(kind, **fields)
    with pytest.raises(RunDamaged):
        compared(pair)
