"""``reprokit record``: run a command and keep the entropy it was given."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from reprokit.cli import options
from reprokit.cli.options import flag
from reprokit.cli.output import launch
from reprokit.core.errors import UsageError
from reprokit.model.plan import RECORD, Plan, key_of_seed
from reprokit.model.run import AUTOMATIC
from reprokit.model.states import WITH_GRADIENTS


@options.launching(epilog="Example: reprokit record -- python train.py")
@options.new_run()
@flag(
    "--include-crypto",
    "Also record the bytes given to cryptographic libraries, which can be secret keys.",
    "record_crypto",
)
@flag(
    "--keyed", "Derive all random bytes from one key of the kernel, so that they take no storage however long the run."
)
@click.option(
    "--seed",
    metavar="TEXT",
    help="Derive the key of --keyed from TEXT: runs with the same TEXT repeat without a recording. Not for secrets.",
)
@options.NO_CALENDAR
@options.CLOCK
@options.NO_SUPERVISOR
@flag("--hide-rdrand", "Hide the processor's RDRAND and RDSEED from programs; see the docs.")
@flag("--prove", "Also run strace, and report every request for random bytes that was not recorded.")
@options.PATCH
@options.path_option(
    "--recipe", "FILE", "Record with the settings in FILE, which 'reprokit reproduce' wrote.", "recipe_file"
)
@options.capturing
@options.saving_tensors
@options.keeping_keyframes
@options.NO_TRAIL
@options.trail_every("auto")
@options.NO_ORDERS
@flag("--trail-gradients", "Also record digests of gradients inside TensorFlow graphs, which changes these graphs.")
@flag(
    "--batch-digests",
    "Also record digests of tf.data's batches, for which Keras' fit gets a data set with one more operation.",
)
@click.option(
    "--push",
    metavar="URL",
    default="",
    help="Write saved tensors to an object store while COMMAND runs, and the rest of the run after it.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True),
    help="Record the digest of a file or directory that the training depends on. Repeatable.",
)
@options.KEEP
@options.KEEP_FOUND
@options.NO_CONSOLE
@options.planned(RECORD)
def command(plan: Plan, seed: str | None, recipe_file: Path | None, trail_gradients: bool) -> None:
    """Run COMMAND unchanged, and record the entropy it is given and the results of its training.

    Its exit status is passed on. reprokit's own failures exit with 125, a command that cannot be run
    with 126, one that is not found with 127.
    """
    if plan.push:
        _require_store(plan.push)
    if seed is not None:
        plan = replace(plan, key=key_of_seed(seed), keyed=True)
    asked = {
        "--trail-gradients": trail_gradients,
        "--batch-digests": plan.batch_digests,
        "--trail-every": plan.trail_every != AUTOMATIC,
    }
    for option, is_given in asked.items():
        if is_given and not plan.trail.is_on:
            raise UsageError(f"{option} is about the trail, which --no-trail leaves out; leave out one of them")
    if trail_gradients:
        plan = replace(plan, trail=WITH_GRADIENTS)
    launch(plan if recipe_file is None else _with_recipe(plan, recipe_file), "reprokit", "replay")


def _require_store(url: str) -> None:
    """Refuse before the training what could not be written after it."""
    from reprokit.run_files import object_stores

    if not object_stores.is_remote(url):
        raise UsageError(f"--push {url}: name a place in a store, such as s3://bucket/prefix")
    object_stores.open_store(url)


def _with_recipe(plan: Plan, path: Path) -> Plan:
    """Return the plan with what the recipe asks for too."""
    from reprokit.run_files import recipe

    asked_recipe, used = recipe.read(path)
    asked = recipe.RecipeSettings(
        clock=plan.clock,
        keyed=plan.keyed,
        include_crypto=plan.record_crypto,
        hide_rdrand=plan.hide_rdrand,
        patches=plan.patches,
    )
    settings = recipe.merged(asked_recipe, asked)
    patches = options.chosen_patches(settings.patches, plan.command)
    return replace(recipe.planned(plan, settings), patches=patches, recipe=used)
