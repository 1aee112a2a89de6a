"""Runs a whole reproduction: its directory, the loop, journal and recipe."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from pathlib import Path

import msgspec

from reprokit.core.errors import CannotWriteRun, ReprokitError, refused_as
from reprokit.core.messages import say
from reprokit.core.version import VERSION
from reprokit.reproduce import journal as journals
from reprokit.reproduce.journal import FAILED, IDENTICAL, INTERRUPTED, RoundJournal
from reprokit.reproduce.laboratory import RUNS, Laboratory, ReproductionWork
from reprokit.reproduce.narrative import markdown
from reprokit.reproduce.search import Reproduction
from reprokit.reproduce.trial import SearchState, Trials
from reprokit.run import run_patches
from reprokit.run.interruption import Interrupted, Interruption
from reprokit.run.rundirectory import home, new_directory
from reprokit.run_files import recipe as recipes
from reprokit.run_files import rundir
from reprokit.run_files.recipe import Recipe, RecipeSettings

STORY, RECIPE = "journal.md", "recipe.toml"
PAIRS = 2


class ReproductionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that the user chose for a reproduction."""

    settings: RecipeSettings = RecipeSettings()  # applied from the first run on, and never removed
    pairs: int | None = None  # None: 2, or 1 if runs diverge early
    max_rounds: int = 10
    keep_runs: bool = False
    smallest: bool = True


def place_for(output: Path | None) -> Path:
    """Return the directory of a reproduction, new and empty."""
    own = f"reproduction-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}"
    place = new_directory(home(Path()) / own if output is None else Path(os.path.realpath(output)))
    return new_directory(place / RUNS).parent


def reproduce(work: ReproductionWork, wishes: ReproductionOptions) -> RoundJournal:
    """Search for settings under which the training repeats; always writes the journal."""
    journal = RoundJournal(
        reprokit=VERSION,
        command=list(work.command),
        directory=str(work.working_directory),
        started=rundir.utc_now(),
        pairs=wishes.pairs or PAIRS,
        max_rounds=wishes.max_rounds,
        settings=wishes.settings,
    )
    try:
        with Interruption() as interruption:
            _search(work, wishes, journal, interruption)
    except Interrupted as interrupted:
        journal.verdict, journal.why = INTERRUPTED, f"by {interrupted}"
        raise
    except ReprokitError as error:
        journal.verdict, journal.why = FAILED, str(error)
        raise
    finally:
        journal.ended = rundir.utc_now()
        _close(journal, work.place)
    if journal.verdict == IDENTICAL:
        write_recipe(journal, work.place / RECIPE)
    return journal


def _search(
    work: ReproductionWork, wishes: ReproductionOptions, journal: RoundJournal, interruption: Interruption
) -> None:
    trials = Trials(
        Laboratory(work, interruption),
        journal,
        keep_runs=wishes.keep_runs,
        may_be_one=wishes.pairs is None,
        save=lambda: save(journal, work.place),
        say=say,
    )
    state = SearchState(trials, journal, wishes.settings)
    automatic = run_patches.wanted(["auto"], work.command, work.working_directory)  # patches without side effects
    Reproduction(state, automatic=automatic, wants_smallest=wishes.smallest).run()


def _close(journal: RoundJournal, place: Path) -> None:
    """Save the journal; remove the directory if there was no run."""
    if any(journal.attempts()) or journal.verdict == INTERRUPTED:
        save(journal, place)
    else:
        shutil.rmtree(place, ignore_errors=True)


def save(journal: RoundJournal, place: Path) -> None:
    """Write the journal, for people and for machines."""
    try:
        journals.write_text(place / journals.NAME, journals.document(journal))
        journals.write_text(place / STORY, markdown(journal))
    except OSError as error:
        say(f"warning: the journal cannot be written: {error.strerror}")


def write_recipe(journal: RoundJournal, path: Path) -> None:
    """Write the recipe under which the command repeats."""
    why = {change.option: change.findings for change in journal.changes}
    comment = (
        f"Written by reprokit {VERSION} on {journal.ended}: {journal.why}.\n"
        f"reprokit record --recipe recipe.toml -- {shlex.join(journal.command)}"
    )
    recipe = Recipe(schema=recipes.SCHEMA, record=journal.settings, why=why)
    with refused_as(CannotWriteRun, path, "make room, then copy the settings from journal.md"):
        recipes.write(path, recipe, comment)
