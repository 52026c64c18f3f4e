"""Lay out ``build/types/perfwatch`` as links, so that type checkers find the packages under their import names.

The folders are ``launcher/`` and ``probes/``; an editable install maps them with an import hook that type checkers
cannot follow.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Remove the old tree and link each entry of launcher/, and probes/, into a new one."""
    package = ROOT / "build" / "types" / "perfwatch"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in (ROOT / "launcher").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    (package / "probes").symlink_to(ROOT / "probes")


if __name__ == "__main__":
    main()
