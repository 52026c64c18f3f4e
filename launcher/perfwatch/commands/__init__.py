"""The commands: one file each, whose docstring is the help. ``COMMANDS`` is in the order of ``--help``.

A command module imports nothing heavy before its function runs, so that ``perfwatch --help`` stays fast. It holds one
function with its own name and, where the command line needs it, ``CONTEXT_SETTINGS`` for the parser.
"""

from types import ModuleType

from perfwatch.commands import (
    attach,
    autopsy,
    bundle,
    capture,
    compare,
    daemon,
    dmon,
    doctor,
    drill,
    explain,
    fleet,
    headroom,
    kernels,
    ncu,
    ps,
    replay,
    report,
    run,
    snapshot,
    top,
)

COMMANDS: tuple[ModuleType, ...] = (
    run,
    attach,
    ps,
    top,
    dmon,
    fleet,
    daemon,
    capture,
    ncu,
    kernels,
    headroom,
    autopsy,
    replay,
    report,
    compare,
    bundle,
    explain,
    doctor,
    drill,
    snapshot,
)
