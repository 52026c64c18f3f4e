"""The manual page and the shell completions, made of the commands' own helps.

    .venv/bin/python scripts/packaging/manual.py             write them below scripts/packaging/share
    .venv/bin/python scripts/packaging/manual.py --check     exit with 1 if they are not what is there

They are in the wheel: pip, pipx and uv put them where man and the shells of the environment look.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from click.shell_completion import get_completion_class

from perfwatch.cli import app
from perfwatch.errors import EXIT_CODES

SHARE = Path(__file__).resolve().parent / "share"
COMPLETIONS = {
    "bash": "bash-completion/completions/perfwatch",
    "zsh": "zsh/site-functions/_perfwatch",
    "fish": "fish/vendor_completions.d/perfwatch.fish",
}
WIDTH = 78


def roff(text: str) -> str:
    """Text as it stands, for a page that is not filled."""
    lines = (line.replace("\\", "\\e").replace("-", "\\-") for line in text.rstrip().splitlines())
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def _section(title: str, text: str) -> str:
    return f'.SH "{title}"\n.nf\n{roff(text)}\n.fi\n'


def _helps() -> Iterator[tuple[str, str]]:
    """Every command with its help, in the order of ``perfwatch --help``."""
    above = app.make_context("perfwatch", [], resilient_parsing=True, terminal_width=WIDTH)
    yield "perfwatch", app.get_help(above)
    for name in app.list_commands(above):
        command = app.get_command(above, name)
        if command is not None and not command.hidden:
            ctx = command.make_context(name, [], parent=above, resilient_parsing=True, terminal_width=WIDTH)
            yield f"perfwatch {name}", command.get_help(ctx)


def manual() -> str:
    """The page in roff."""
    whole, *commands = _helps()
    codes = "\n".join(
        f"{code:3}  {name.replace('_', ' ')}" for name, code in sorted(EXIT_CODES.items(), key=lambda one: one[1])
    )
    parts = [
        '.TH PERFWATCH 1 "" "perfwatch" "User Commands"\n',
        _section("NAME", "perfwatch - say whether a PyTorch run is hung, slow, busy or healthy, why, and who is to blame"),
        _section("SYNOPSIS", "perfwatch run -- COMMAND...\nperfwatch attach [PID|PATTERN|SESSION]\nperfwatch COMMAND --help"),
        _section("DESCRIPTION", whole[1].partition("\n\n")[2]),
        *(_section(name.upper(), text) for name, text in commands),
        _section("EXIT STATUS", f"Of attach and replay; run ends as its command did.\n\n{codes}"),
        _section("FILES", "/etc/perfwatch/config.toml\n~/.config/perfwatch/config.toml\n~/.local/state/perfwatch    recordings"),
    ]  # fmt: skip
    return "".join(parts)


def files() -> dict[Path, str]:
    """Every file with its content."""
    made = {SHARE / "man/man1/perfwatch.1": manual()}
    for shell, path in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        made[SHARE / path] = kind(app, {}, "perfwatch", "_PERFWATCH_COMPLETE").source().strip() + "\n"
    return made


def main() -> None:
    """Write them, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    for path, text in files().items():
        if options.check and (not path.exists() or path.read_text() != text):
            sys.exit(f"{path.relative_to(SHARE.parent)} is not what the helps say: run {sys.argv[0]}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
