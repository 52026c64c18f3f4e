"""The commands: one file each, whose docstring is the help. ``SECTIONS`` is in the order of ``--help``.

A command module holds one function with its own name and, where the command line needs it, ``CONTEXT_SETTINGS`` for the
parser. It imports nothing heavy before its function runs, so that ``perfwatch --help`` stays fast; of the other commands none
is loaded.
"""

from importlib import import_module
from types import ModuleType

SECTIONS: dict[str, tuple[str, ...]] = {
    "Watch a job": ("run", "attach", "ps", "top", "dmon", "fleet", "daemon"),
    "Profile": ("capture", "ncu", "kernels", "headroom"),
    "Recordings": ("replay", "report", "sessions", "compare", "bundle", "autopsy"),
    "Help": ("explain", "doctor", "drill", "help", "version"),
}
HIDDEN = ("snapshot",)  # for ``fleet``
COMMANDS: tuple[str, ...] = (*(name for names in SECTIONS.values() for name in names), *HIDDEN)


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"perfwatch.commands.{name}")
