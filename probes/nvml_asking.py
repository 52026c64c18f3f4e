"""Asks NVML and takes "not supported" for an answer: None, and it is not asked again."""

from typing import Any

from perfwatch.probes.nvml_layer import NEVER, UNREACHABLE, Handle, Nvml, Refused


class Asking:
    """Questions about one card.

    Args:
        nvml: whom to ask.
        handle: the card.

    What the card refuses for good is remembered; what it refuses today (no permission, in use) is asked again. A card that
    cannot be reached raises Refused: then nothing else about it is true either.
    """

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self.nvml, self.handle = nvml, handle
        self._never: set[tuple[Any, ...]] = set()

    def number(self, call: str, *arguments: Any) -> int | None:
        """One number, or None."""
        return self._ask(self.nvml.number, call, *arguments)  # type: ignore[no-any-return]

    def numbers(self, call: str) -> tuple[int, ...] | None:
        """Several numbers, or None."""
        return self._ask(self.nvml.numbers, call)  # type: ignore[no-any-return]

    def first(self, call: str) -> int | None:
        """The first of several numbers, or None."""
        numbers = self.numbers(call)
        return numbers[0] if numbers else None

    def text(self, call: str) -> str | None:
        """A text, or None."""
        return self._ask(self.nvml.text, call)  # type: ignore[no-any-return]

    def record(self, call: str) -> dict[str, Any]:
        """The members of a structure; empty when it is not told."""
        return dict(self._ask(self.nvml.record, call) or {})

    def fields(self, wanted: dict[str, tuple[int, int]]) -> dict[str, int | float]:
        """Many field values in one call, by name; those that the card does not tell are left out, and not asked again."""
        asked = [(name, field) for name, field in wanted.items() if ("field", *field) not in self._never]
        if not asked or ("fields",) in self._never:
            return {}
        try:
            answers = self.nvml.fields(self.handle, [field for _, field in asked])
        except Refused as refused:
            if refused.code in UNREACHABLE:
                raise
            if refused.code in NEVER:
                self._never.add(("fields",))
            return {}
        told = {}
        for (name, field), answer in zip(asked, answers, strict=True):
            if not isinstance(answer, Refused):
                told[name] = answer
            elif answer.code in UNREACHABLE:
                raise answer
            elif answer.code in NEVER:
                self._never.add(("field", *field))
        return told

    def _ask(self, how: Any, call: str, *arguments: Any) -> Any:
        if (call, *arguments) in self._never:
            return None
        try:
            return how(call, self.handle, *arguments)
        except Refused as refused:
            if refused.code in UNREACHABLE:
                raise
            if refused.code in NEVER:
                self._never.add((call, *arguments))
            return None
