"""The option that ``run``, ``attach``, ``daemon``, ``fleet`` and ``snapshot`` share."""

from typing import Annotated

from perfwatch.options import Option, Seconds

HangTimeout = Annotated[
    float,
    Option(
        "--hang-timeout",
        "-t",
        hidden_names=("--patience",),
        metavar="TIME",
        kind=Seconds(1.0),
        help="How long a wait that can end on its own may take before it is called hung: 90s, 5m.",
    ),
]
