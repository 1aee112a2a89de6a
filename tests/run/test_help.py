"""The pages of docs/commands say what the code says."""

from __future__ import annotations

from pathlib import Path

from reprokit.run_files import variables

PAGES = Path(__file__).parent.parent.parent / "docs" / "commands"


def test_the_page_lists_the_variables_that_are_kept() -> None:
    page = (PAGES / "replay.md").read_text()
    for name in (
        *(f"`{prefix}*`" for prefix in variables.KEPT_PREFIXES),
        *(f"`{name}`" for name in variables.KEPT_NAMES),
    ):
        assert name in page


def test_what_a_launcher_of_ranks_sets_for_one_job_is_not_kept() -> None:
    assert variables.is_kept("OMPI_MCA_coll_tuned_priority", "1")
    assert not variables.is_kept("OMPI_MCA_ess_base_jobid", "1")
    assert not variables.is_kept("!OMPI_MCA_ess*", "1")
