"""What the user says of the model, and the gate on model FLOPs utilisation: options that ``run``, ``attach`` and ``replay`` share.

Every command is loaded to print the help, so what this module needs is imported where it is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

from perfwatch.errors import EXIT_CODES, UsageError
from perfwatch.options import Number, Option, Together

if TYPE_CHECKING:
    from perfwatch.recording.recording import Recording
    from perfwatch.verdict import Verdict

MODEL = "Model, for its FLOPs utilisation (MFU)"

Params = Annotated[
    float | None,
    Option(
        "--params",
        panel=MODEL,
        metavar="N",
        help="Parameters of the model: 8e9, or 8b.",
        kind=Number(1, likely="8e9, or 8b"),
    ),
]
TokensPerStep = Annotated[
    float | None,
    Option(
        "--tokens-per-step",
        panel=MODEL,
        metavar="N",
        help="Tokens per optimizer step, all ranks together: 4e6, or 4m.",
        kind=Number(1, likely="4e6, or 4m"),
    ),
]
Layers = Annotated[
    float | None,
    Option(
        "--layers",
        panel=MODEL,
        metavar="N",
        help="Layers; with --hidden and --sequence attention is counted too.",
        min=1,
    ),
]
Hidden = Annotated[float | None, Option("--hidden", panel=MODEL, metavar="N", help="Width of the model.", min=1)]
Sequence = Annotated[float | None, Option("--sequence", panel=MODEL, metavar="N", help="Tokens per sequence.", min=1)]
MinMfu = Annotated[
    float | None,
    Option(
        "--min-mfu",
        panel=MODEL,
        metavar="PERCENT",
        help="Exit with 60 if MFU is lower, with 50 if it is unknown.",
        min=0,
        max=100,
    ),
]


@dataclass(frozen=True)
class Model:
    """What the user says of the model. Numbers as typed; None: not said."""

    params: Params = None
    tokens_per_step: TokensPerStep = None
    layers: Layers = None
    hidden: Hidden = None
    sequence: Sequence = None

    def conditions(self) -> dict[str, float]:
        """What was said, as conditions of a session.

        Raises:
            UsageError: only a part of what belongs together was said.
        """
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        known: dict[str, float] = {name: value for name, value in said.items() if value is not None}
        if (self.params is None) != (self.tokens_per_step is None):
            raise UsageError(
                "--params and --tokens-per-step belong together", "give both, as in --params 8e9 --tokens-per-step 4e6"
            )
        attention = {"layers", "hidden", "sequence"} & set(known)
        if attention and (len(attention) < 3 or self.params is None):
            raise UsageError(
                "--layers, --hidden and --sequence belong together, with --params",
                "give all of them, or none: 6 x params x tokens is counted then",
            )
        return known


DescribedModel = Annotated[Callable[[], Model], Together(Model)]


def checked(model: Model, min_mfu: float | None, recorded: bool = False) -> dict[str, float]:
    """The model's conditions, where they suffice for the gate; a recording may hold them already.

    Raises:
        UsageError: the gate was asked for and the model is not known.
    """
    conditions = model.conditions()
    if min_mfu is not None and not conditions and not recorded:
        raise UsageError("--min-mfu needs to know the model", "add --params N --tokens-per-step N")
    return conditions


def told(recording: "Recording", conditions: Mapping[str, float]) -> "Recording":
    """A recording to which is added what the user says of its model now."""
    from msgspec import structs

    if not conditions:
        return recording
    session = recording.session
    return replace(recording, session=structs.replace(session, conditions={**session.conditions, **conditions}))


def gated(verdict: "Verdict", min_mfu: float | None) -> tuple[int, str]:
    """The exit code of a verdict behind the gate, and what to say about it (empty: nothing).

    The gate speaks only of a job that goes on: what is hung or gone says so by its own code.
    """
    from perfwatch.report.exits import exit_code

    code = exit_code(verdict)
    if min_mfu is None or verdict.state not in ("healthy", "slow"):
        return code, ""
    model = verdict.efficiency.model if verdict.efficiency is not None else None
    if model is None or model.mfu is None:
        why = model.missing if model is not None else "no GPU of this job was seen"
        return EXIT_CODES["inconclusive"], f"MFU is not known: {why}"
    if 100.0 * model.mfu.p50 < min_mfu:
        return EXIT_CODES["gate_failed"], f"MFU {100 * model.mfu.p50:.1f} % is below {min_mfu:g} %"
    return code, f"MFU {100 * model.mfu.p50:.1f} % (at least {min_mfu:g} % asked for)"
