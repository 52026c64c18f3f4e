"""Options that several commands share."""

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
        help="How long to wait before a wait that can end on its own is called hung: 90s, 5m.",
    ),
]

JsonVersion = Annotated[
    int, Option("--json-version", metavar="1|2", min=1, max=2, help="--json in the form of perfwatch.verdict/1 or /2.")
]
