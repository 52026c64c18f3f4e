"""Asks NVML and takes "not supported" for an answer: None, and it is not asked again."""

from typing import Any

from perfwatch_probes.nvml_layer import IN_USE, NEVER, NO_PERMISSION, UNREACHABLE, Handle, Nvml, Refused

_NOT_FOR_US = frozenset({NO_PERMISSION, IN_USE})  # the card is well


class Asking:
    """Questions about one card.

    Args:
        nvml: whom to ask.
        handle: the card.

    What the card refuses for good is remembered; what it refuses today (no permission, in use) is asked again. A card that
    cannot be reached raises Refused: then nothing else about it is true either.

    Attributes:
        heard: how many questions were answered so far.
        refusal: the last one that says that the card is not well.
    """

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self.nvml, self.handle = nvml, handle
        self._never: set[tuple[Any, ...]] = set()
        self.heard = 0
        self.refusal: Refused | None = None

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
            self._refused(refused, "fields")
            return {}
        told = {}
        for (name, field), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Refused):
                self._refused(answer, "field", *field)
            else:
                told[name] = answer
        self.heard += len(told)
        return told

    def _ask(self, how: Any, call: str, *arguments: Any) -> Any:
        if (call, *arguments) in self._never:
            return None
        try:
            answer = how(call, self.handle, *arguments)
        except Refused as refused:
            self._refused(refused, call, *arguments)
            return None
        self.heard += 1
        return answer

    def _refused(self, refused: Refused, *asked: Any) -> None:
        if refused.code in UNREACHABLE:
            raise refused
        if refused.code in NEVER:
            self._never.add(asked)
        elif refused.code not in _NOT_FOR_US:
            self.refusal = refused
