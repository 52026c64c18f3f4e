"""What a decoder raises at bytes that are torn, garbled, or made to harm."""

import msgspec

# msgspec says UnicodeDecodeError, which is none of its own, at a byte within a string that is no UTF-8; nesting without end recurses.
DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
