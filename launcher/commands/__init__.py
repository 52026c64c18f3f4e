"""What the user types: one file per command, its docstring is its help. ``COMMANDS`` is in the order of ``--help``.

A command module imports nothing heavy before its function runs, so that ``perfwatch --help`` stays fast. It holds one
function with its own name and, where the command line needs it, ``CONTEXT_SETTINGS`` for the parser.
"""

from types import ModuleType

from perfwatch.commands import attach, bundle, dmon, doctor, drill, explain, ps, replay, run

COMMANDS: tuple[ModuleType, ...] = (run, attach, ps, dmon, replay, bundle, explain, doctor, drill)
