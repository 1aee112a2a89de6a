"""``reprokit record``: run a command and keep the entropy it was given."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import launch
from reprokit.model.states import WITH_GRADIENTS
from reprokit.plan import RECORD, Plan, key_of_seed


@options.launching()
@options.new_run()
@flag(
    "--include-crypto",
    "Record the bytes given to cryptographic libraries too: they can be secret keys.",
    "record_crypto",
)
@flag("--keyed", "Ask the kernel for one key and answer every request from it: any length of run costs no storage.")
@click.option(
    "--seed",
    metavar="TEXT",
    help="Make the key of --keyed from TEXT: runs with the same TEXT repeat without a recording. Not for secrets.",
)
@flag(
    "--clock", "Record the time of day too, and stand in for process ids, for native code that seeds itself from them."
)
@options.NO_SUPERVISOR
@flag("--hide-rdrand", "Hide the processor's RDRAND and RDSEED from programs; see the docs.")
@flag("--prove", "Run strace beside, and name every request to the kernel that was not recorded.")
@options.PATCH
@options.path_option(
    "--recipe", "FILE", "Record with what 'reprokit reproduce' found that the training needs.", "recipe_file"
)
@options.capturing
@options.NO_TRAIL
@flag("--trail-gradients", "Digest gradients inside graphs of TensorFlow too, which changes these graphs.")
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True),
    help="Note the digest of a file or directory that the training depends on; can be given several times.",
)
@options.KEEP
@options.planned(RECORD)
def command(plan: Plan, seed: str | None, recipe_file: Path | None, trail_gradients: bool) -> None:
    """Run COMMAND as it is, and record the entropy it is given and what its training comes to.

    Its exit status is passed on. reprokit's own failures exit with 125, a command that cannot be run
    with 126, one that is not found with 127.
    """
    if seed is not None:
        plan = replace(plan, key=key_of_seed(seed), keyed=True)
    if trail_gradients and plan.trail.is_on:
        plan = replace(plan, trail=WITH_GRADIENTS)
    launch(plan if recipe_file is None else _with_recipe(plan, recipe_file))


def _with_recipe(plan: Plan, path: Path) -> Plan:
    """The plan with what the recipe asks for too."""
    from reprokit import recipe

    found, used = recipe.read(path)
    asked = recipe.RecipeSettings(
        clock=plan.clock,
        keyed=plan.keyed,
        include_crypto=plan.record_crypto,
        hide_rdrand=plan.hide_rdrand,
        patches=plan.patches,
    )
    settings = recipe.merged(found, asked)
    patches = options.chosen_patches(settings.patches, plan.command)
    return replace(recipe.planned(plan, settings), patches=patches, recipe=used)
