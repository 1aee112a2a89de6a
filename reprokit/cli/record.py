"""``reprokit record``: run a command and keep the entropy it was given."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from reprokit.cli.arguments import (
    KEEP,
    NO_SUPERVISOR,
    NO_TRAIL,
    OWN_DIRECTORY,
    PATCH,
    TRAIL_GRADIENTS,
    CommandBehindDashes,
    capturing,
    new_run,
)
from reprokit.cli.ending import end_as
from reprokit.cli.paths import current_directory
from reprokit.model.states import ON, WITH_GRADIENTS, WITHOUT_TRAIL
from reprokit.plan import RECORD, CapturePlan, Plan, key_of_seed, new_key


@click.command(cls=CommandBehindDashes, context_settings={"allow_interspersed_args": False})
@new_run()
@click.option(
    "--include-crypto",
    is_flag=True,
    help="Record the bytes given to cryptographic libraries too: they can be secret keys.",
)
@click.option(
    "--keyed",
    is_flag=True,
    help="Ask the kernel for one key and answer every request from it: any length of run costs no storage.",
)
@click.option(
    "--seed",
    metavar="TEXT",
    help="Make the key of --keyed from TEXT: runs with the same TEXT repeat without a recording. Not for secrets.",
)
@click.option(
    "--clock",
    is_flag=True,
    help="Record the time of day too, and stand in for process ids, for native code that seeds itself from them.",
)
@NO_SUPERVISOR
@click.option("--hide-rdrand", is_flag=True, help="Hide the processor's RDRAND and RDSEED from programs; see the docs.")
@click.option(
    "--prove", is_flag=True, help="Run strace beside, and name every request to the kernel that was not recorded."
)
@PATCH
@click.option(
    "--recipe",
    metavar="FILE",
    type=OWN_DIRECTORY,
    help="Record with what 'reprokit reproduce' found that the training needs.",
)
@capturing
@NO_TRAIL
@TRAIL_GRADIENTS
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True),
    help="Note the digest of a file or directory that the training depends on; can be given several times.",
)
@KEEP
@click.pass_obj
def command(
    behind_dashes: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    include_crypto: bool,
    keyed: bool,
    seed: str | None,
    clock: bool,
    no_supervisor: bool,
    hide_rdrand: bool,
    prove: bool,
    patches: tuple[str, ...],
    recipe: Path | None,
    capture: CapturePlan | None,
    no_trail: bool,
    trail_gradients: bool,
    data: tuple[str, ...],
    keep_outputs: int,
) -> None:
    """Run COMMAND as it is, and record the entropy it is given and what its training comes to.

    Its exit status is passed on. reprokit's own failures exit with 125, a command that cannot be run
    with 126, one that is not found with 127.
    """
    from reprokit.launch.platform_support import require_supported

    require_supported()
    from reprokit.launch.run import execute

    plan = Plan(
        mode=RECORD,
        command=behind_dashes,
        working_directory=current_directory(),
        output=output,
        overwrite=overwrite,
        key=new_key() if seed is None else key_of_seed(seed),
        record_crypto=include_crypto,
        keyed=keyed or seed is not None,
        clock=clock,
        supervisor=not no_supervisor,
        trail=WITHOUT_TRAIL if no_trail else WITH_GRADIENTS if trail_gradients else ON,
        hide_rdrand=hide_rdrand,
        prove=prove,
        keep_outputs=keep_outputs,
        data=data,
        patches=chosen_patches(patches, behind_dashes),
        capture=capture,
    )
    end_as(execute(plan if recipe is None else _with_recipe(plan, recipe)).ended)


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
    patches = chosen_patches(settings.patches, plan.command)
    return msgspec.structs.replace(recipe.planned(plan, settings), patches=patches, recipe=used)


def chosen_patches(words: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """The ids and values that --patch stands for."""
    if not words:
        return ()
    from reprokit.launch.run_patches import wanted

    return wanted(words, command, current_directory())
