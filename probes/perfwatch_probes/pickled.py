"""Pickles of foreign origin: plain containers and values are read, everything else is refused."""

import io
import pickle
from typing import Any, NoReturn

from perfwatch_probes.foreign import text
from perfwatch_probes.probe import Unavailable

MOST_WORDS = 200  # characters of what is said about one that is refused


class _Plain(pickle.Unpickler):
    """Knows no class and no function, so a file can build nothing but dicts, lists, tuples, sets, texts and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a dump has no need of")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside itself")


def plain(content: bytes) -> Any:
    """What the pickle holds. Call it where a crash or a lack of memory does no harm. Raises Unavailable when refused or torn."""
    try:
        return _Plain(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        said = text(str(error), MOST_WORDS) or type(error).__name__
        raise Unavailable(f"it is torn or no plain pickle: {said}") from None
    except (MemoryError, RecursionError, OverflowError) as error:
        raise Unavailable(f"it cannot be read safely: {type(error).__name__}") from None
