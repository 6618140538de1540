"""A command that has others beneath it, as ``streamrec bench`` has ``bench compare``."""

from __future__ import annotations

from typing import Any

import click


class BranchingCommand(click.Group):
    """A command with options and arguments of its own, and with other commands beneath it.

    The name of one of these must be the first word behind its own. It has options of its own, too.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the own options and arguments, but none where another command's name comes first."""
        if args and args[0] in self.commands:
            ctx.args = args
            return args
        # A group's options end at its first argument, which is the name of a command.
        ctx.allow_interspersed_args = True
        rest = click.Command.parse_args(self, ctx, args)
        if not ctx.resilient_parsing:
            self._refuse_late_name(ctx)
        return rest

    def _refuse_late_name(self, ctx: click.Context) -> None:
        """Refuse the name of a command behind an option, where it would be a source."""
        arguments = [one for one in self.params if isinstance(one, click.Argument)]
        for values in (ctx.params.get(one.name or "") for one in arguments):
            if values and values[0] in self.commands:
                name = values[0]
                ctx.fail(
                    f"{name!r} is a command, which must stand before all options; write "
                    f"`{ctx.command_path} {name} ...` (a file of this name is ./{name})"
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named, or else this one."""
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, *args = ctx.args
        command = self.commands[name]
        ctx.invoked_subcommand = name
        with command.make_context(name, args, parent=ctx) as inner:
            return command.invoke(inner)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters, but none where click writes the path of another command."""
        return super().get_params(ctx) if ctx.command is self else []
