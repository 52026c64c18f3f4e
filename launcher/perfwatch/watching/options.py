"""The option that ``run``, ``attach``, ``daemon``, ``fleet`` and ``snapshot`` share."""

from typing import Annotated

import typer

HangTimeout = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        min=1.0,
        help="How long a wait that time may heal is given before it is called hung.",
    ),
]
