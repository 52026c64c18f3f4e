"""Options that several commands share."""

from typing import Annotated

import typer

HangTimeout = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        min=1.0,
        help="How long to wait before a wait that can end on its own is called hung.",
    ),
]

JsonVersion = Annotated[
    int,
    typer.Option(
        "--json-version", metavar="1|2", min=1, max=2, help="--json in the form of perfwatch.verdict/1 or /2."
    ),
]
