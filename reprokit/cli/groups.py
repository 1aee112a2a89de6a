"""Groups of commands: alone they show their help, and of a misspelled command they say which was meant."""

from __future__ import annotations

import click

FEW = 9  # commands that fit into a line of advice


class CommandGroup(click.Group):
    """A group of commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where nothing is asked for."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take a British spelling for the American one; refuse an unknown command with those of a similar name."""
        american = args[0].replace("is", "iz") if args else ""
        if american and self.get_command(ctx, args[0]) is None and self.get_command(ctx, american) is not None:
            from reprokit.core.messages import say

            say(f"{args[0]} is spelled {american} here")
            args = [american, *args[1:]]
        if args and self.get_command(ctx, args[0]) is None:
            import difflib

            commands = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], commands, n=3)
            few = f"; commands here: {', '.join(commands)}." if len(commands) <= FEW else "."
            advice = f"; did you mean {' or '.join(near)}?" if near else few
            ctx.fail(f"there is no command {args[0]!r}{advice}")
        return super().resolve_command(ctx, args)
