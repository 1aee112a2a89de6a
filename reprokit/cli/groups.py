"""Groups of commands: alone they show their help, and of a misspelled command they say which was meant."""

from __future__ import annotations

import click


class CommandGroup(click.Group):
    """A group of commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where nothing is asked for."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown command with those of a similar name."""
        if args and self.get_command(ctx, args[0]) is None:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=3)
            advice = f"; did you mean {' or '.join(near)}?" if near else "."
            ctx.fail(f"there is no command {args[0]!r}{advice}")
        return super().resolve_command(ctx, args)
