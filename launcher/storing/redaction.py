"""Takes secrets out of text before it is stored, printed or sent: command lines, environments, log lines, paths.

Two nets. First the forms that are certain: a key that is called a secret and its value, URLs with credentials, the
prefixes that vendors give their tokens. Then a statistical one for long words that look drawn at random. Paths pass
the second net, because a verdict must be able to name the blob of a model cache. A false alarm costs a word; a miss
costs a key.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
# The same paths, frames and commands come again and again; 4096 of them are a megabyte.
LONGEST_REMEMBERED, MOST_REMEMBERED = 256, 4096

# Names that make a value secret, in environment variables, options and assignments.
_NAME = (
    r"(?:[\w.-]{0,40}(?:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key|auth[_-]?key"
    r"|private[_-]?key|account[_-]?key|encryption[_-]?key|apikey|authorization|cookie|connection[_-]?string"
    r"|netrc)[\w.-]{0,40}|[\w.-]{0,40}_(?:pass|pat|dsn|sig))"
)
# Names that are words of prose too ("key: rank 3"): secret only before an equals sign or as an option, and unless the
# value is a number.
_WEAK_NAME = r"(?:(?:[\w.-]{0,40}[_-])?(?:key|pass|pwd|auth))"
# Options of training programs that contain such a word and hold no secret: a number, a switch or a tokenizer's name.
_HARMLESS_NAME = re.compile(
    r"(?i)(?:tokens|tokeni[sz]er[\w-]*|(?:num|max|min|n|pad|bos|eos|unk|mask|cls|sep)[_-][\w-]*tokens?[\w-]*"
    r"|tokens?[_-](?:per|count|limit|id|ids|type|length|embed\w*|drop\w*|rank|budget)[\w-]*"
    r"|[\w-]*tokens[_-]per[\w-]*|[\w-]*num_tokens[\w-]*|key[_-](?:size|dim|length|padding)[\w-]*)"
)
_SWITCH = re.compile(r"(?i)(?:true|false|none|null|yes|no|on|off)")
_NUMBER = re.compile(r"(?i)[+-]?[\d.]{1,12}(?:e[+-]?\d+)?")

_VALUE = r"""(?P<value> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | (?:(?:bearer|basic|token)\s+)?[^\s'",;&]+ )"""
_ASSIGNMENTS = (
    re.compile(rf"""(?ix) (?<![\w/]) (?P<name>-{{0,2}}(?=\w){_NAME}) (?P<join>\\?['"]?\s*(?:=>|[=:])\s*) {_VALUE}"""),
    re.compile(rf"""(?ix) (?<!\S) (?P<name>-{{1,2}}{_NAME}) (?P<join>\s+) (?!-) {_VALUE}"""),
)
_WEAK_ASSIGNMENTS = (
    re.compile(rf"""(?ix) (?<![\w/]) (?P<name>-{{0,2}}(?=\w){_WEAK_NAME}) (?P<join>\s?=\s?) {_VALUE}"""),
    re.compile(rf"""(?ix) (?<!\S) (?P<name>-{{1,2}}{_WEAK_NAME}) (?P<join>\s+) (?!-) {_VALUE}"""),
)
_OPTION, _WEAK_OPTION = (re.compile(rf"(?i)--?{name}") for name in (_NAME, _WEAK_NAME))

_CERTAIN = [
    # -----BEGIN ... PRIVATE KEY----- up to its end, or to the end of what we have
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # scheme://user:password@host and scheme://token@host
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]+@"), rf"\1{REDACTED}@"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)(?=[^\s]*[\d=._-])[A-Za-z0-9._~+/=-]{12,}"), rf"\1{REDACTED}"),
    # signed URLs: AWS, GCS, Azure
    (re.compile(r"(?i)([?&](?:X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature|sig|signature)=)[^\s&'\"]+"),
     rf"\1{REDACTED}"),
    (re.compile(r"(?<!\S)(--notify(?:\s+|=))[^\s@]\S*"), rf"\1{REDACTED}"),  # our own webhook, of a perfwatch below a job
    (re.compile(r"(?i)(https?://hooks\.slack\.com/services/)\S+"), rf"\1{REDACTED}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), REDACTED),  # JSON web token
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"), REDACTED),  # AWS key id
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}"), REDACTED),  # Hugging Face
    (re.compile(r"\b(?:sk|pk|rk)[-_](?:[A-Za-z]+[-_])*[A-Za-z0-9_-]{16,}"), REDACTED),  # OpenAI, Anthropic, Stripe
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})"), REDACTED),
    (re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"), REDACTED),  # Slack
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"), REDACTED),  # Google
    (re.compile(r"\bya29\.[A-Za-z0-9_.-]{20,}"), REDACTED),  # Google OAuth
    (re.compile(r"\b(?:npm_|pypi-|dckr_pat_|nvapi-|wandb_v1_|r8_|gsk_|dapi)[A-Za-z0-9_-]{16,}"), REDACTED),
]  # fmt: skip

# A hexadecimal word of these lengths is a Weights & Biases key (40) or a session secret (32, 64), or a hash that
# nobody needs.
_HEX = re.compile(r"(?<![\w/.:-])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{86})(?![\w/.-])", re.IGNORECASE)
_LONG_WORD = re.compile(r"(?<![\w/+.~-])[A-Za-z0-9_+/=-]{28,}(?![\w+=-])")
# Random base64 of 40 characters has about 4.7 bits a character, English and identifiers below 4.0 (measured on this
# code base).
_RANDOM_BITS = 4.2


def redact(text: str) -> str:
    """The same text, with ``[redacted]`` for everything that looks like a secret. Twice is the same as once.

    What is not UTF-8 in a command line reaches Python as lone surrogates, which no JSON can hold: each becomes ``?``.
    Cost: 70 us for a path, 0.1 us when it was seen lately.
    """
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _redact(text)


def redact_command(arguments: Iterable[str]) -> tuple[str, ...]:
    """A command line, word by word, with the word after ``--token`` and its like hidden too."""
    hidden: list[str] = []
    hide_next = hide_text = False
    for word in arguments:
        harmless = word.startswith("--") or (hide_text and (_NUMBER.fullmatch(word) or _SWITCH.fullmatch(word)))
        hidden.append(REDACTED if (hide_next or hide_text) and not harmless else redact(word))
        hide_next = word == "--notify" or (
            bool(_OPTION.fullmatch(word)) and not _HARMLESS_NAME.fullmatch(word.lstrip("-"))
        )
        hide_text = not hide_next and bool(_WEAK_OPTION.fullmatch(word))
    return tuple(hidden)


def redact_tree(value: Any) -> Any:
    """Every string inside a JSON-like value, redacted; values of keys that are named like secrets hidden whole."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            key: REDACTED if isinstance(item, str) and item and _is_secret_name(str(key)) else redact_tree(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        words = list(value)
        return list(redact_command(words)) if words and all(isinstance(word, str) for word in words) else [
            redact_tree(item) for item in words
        ]  # fmt: skip
    return value


def _redact(text: str) -> str:
    for pattern, replacement in _CERTAIN:
        text = pattern.sub(replacement, text)
    for pattern in _ASSIGNMENTS:
        text = pattern.sub(_hide_value, text)
    for pattern in _WEAK_ASSIGNMENTS:
        text = pattern.sub(lambda match: match[0] if _NUMBER.fullmatch(match["value"]) else _hide_value(match), text)
    text = _HEX.sub(REDACTED, text)
    return _LONG_WORD.sub(lambda match: REDACTED if _looks_random(match[0]) else match[0], text)


_remembered = lru_cache(MOST_REMEMBERED)(_redact)


@lru_cache(MOST_REMEMBERED)
def _is_secret_name(name: str) -> bool:
    return bool(_OPTION.fullmatch(f"--{name}")) and not _HARMLESS_NAME.fullmatch(name)


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    if _HARMLESS_NAME.fullmatch(match["name"].lstrip("-")) or _SWITCH.fullmatch(value.strip(quote or None)):
        return match[0]
    return f"{match['name']}{match['join']}{quote}{REDACTED}{quote}"


def _looks_random(word: str) -> bool:
    kinds = sum(bool(re.search(pattern, word)) for pattern in ("[a-z]", "[A-Z]", "[0-9]"))
    if kinds < 3 or word.startswith("/"):
        return False
    counts = Counter(word)
    bits = -sum(count / len(word) * math.log2(count / len(word)) for count in counts.values())
    return bits >= _RANDOM_BITS
