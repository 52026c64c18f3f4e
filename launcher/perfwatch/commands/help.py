"""``perfwatch help``: the help of perfwatch, or of one command."""

from typing import Annotated

from perfwatch.commands import COMMANDS
from perfwatch.options import Argument, nearest


def help(
    command: Annotated[
        str | None,
        Argument("[COMMAND]", "A command.", complete=lambda begun: [one for one in COMMANDS if one.startswith(begun)]),
    ] = None,
) -> None:
    """Show the help of perfwatch, or of one command.

    \b
    Examples:
      perfwatch help
      perfwatch help attach
    """
    import click

    from perfwatch.errors import UsageError

    above = click.get_current_context().find_root()
    group = above.command
    assert isinstance(group, click.Group)
    if command is None:
        print(above.get_help())
        return
    asked = group.get_command(above, command)
    if asked is None:
        raise UsageError(f"there is no command {command}", nearest(command, COMMANDS) or "perfwatch help lists them")
    with click.Context(asked, above, command, **asked.context_settings) as context:
        print(asked.get_help(context))
