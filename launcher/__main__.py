"""``python -m perfwatch``."""

from perfwatch.cli import main

main()
