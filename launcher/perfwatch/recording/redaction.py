"""Takes secrets out of text before it is stored, printed or sent: command lines, environments, log lines, paths.

Four nets, from certain to likely:

1. options that take a password, by program (``password_options``), and the word after ``--token`` and its like;
2. the grammar of credentials: a header, a URL with a user or a webhook in it, a private key, a name and its value;
3. the tokens of vendors, by the rules of a maintained scanner (``secret_rules``);
4. long words that look drawn at random.

Paths and commits pass the last net, because a verdict must be able to name the blob of a model cache. A false alarm costs a word;
a miss costs a key. Every pattern takes time in proportion to the text, and a text has a greatest length.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from perfwatch.recording.password_options import hidden_parts, may_hold_passwords
from perfwatch.recording.secret_rules import bits_per_letter, hide_vendor_tokens

REDACTED = "[redacted]"
CUT = " [cut]"
LONGEST_TEXT = 64 * 2**10  # a command line may have megabytes
# The same paths, frames and commands come again and again; 4096 of them are a megabyte.
LONGEST_REMEMBERED, MOST_REMEMBERED = 256, 4096
# Between the words of a command line, which are judged together: white space to every pattern, and in no command line.
_BETWEEN = "\v"

# Names that make a value secret, in environment variables, options and assignments.
_NAME = (
    r"(?:[\w.-]{0,40}(?:password|passwd|passphrase|passcode|secret|token|credential|api[_-]?key|access[_-]?key|auth[_-]?key"
    r"|private[_-]?key|account[_-]?key|encryption[_-]?key|access[_-]?signature|apikey|authorization|cookie"
    r"|connection[_-]?string|netrc)[\w.-]{0,40}|[\w.-]{0,40}_(?:pass|pat|dsn|sig)|(?:[\w.-]{0,40}[_-])?(?:pw|creds?))"
)
# Names that are words of prose too ("key: rank 3"): secret only before an equals sign or as an option, and unless the
# value is a number. A vendor's bare name is an option that takes its key: --comet KEY.
_WEAK_NAME = r"(?:(?:[\w.-]{0,40}[_.-])?(?:key|pass|pwd|pat|jwt|auth|bearer)|comet|neptune|wandb|clearml)"
# A text without any of these holds none of the names.
_NAME_PARTS = (
    "pass", "secret", "token", "cred", "key", "auth", "cookie", "signature", "connection", "netrc", "_pat", "-pat", "jwt", "dsn", "sig",
    "pw", "bearer", "comet", "neptune", "wandb", "clearml",
)  # fmt: skip
# Options of training programs that contain such a word and hold no secret: a number, a switch, a file or a tokenizer's name.
_HARMLESS_NAME = re.compile(
    r"(?i)(?:tokens|tokeni[sz]er[\w-]*|(?:num|max|min|n|pad|bos|eos|unk|mask|cls|sep)[_-][\w-]*tokens?[\w-]*"
    r"|tokens?[_-](?:per|count|limit|id|ids|type|length|embed\w*|drop\w*|rank|budget)[\w-]*"
    r"|[\w-]*tokens[_-]per[\w-]*|[\w-]*num_tokens[\w-]*|key[_-](?:size|dim|length|padding)[\w-]*"
    r"|[\w.-]+[_-](?:file|path|dir|folder))"
)
# A line of a source file whose name has such a word: api_key.py:12
_SOURCE, _LINE = (
    re.compile(r"\w[\w.-]*\.(?:pyi?|pyx|c|cc|cpp|cxx|cuh?|h|hpp|rs|go)"),
    re.compile(r"\d{1,6}(?::\d{1,6})?[:),.\]]*"),
)
_SWITCH = re.compile(r"(?i)(?:true|false|none|null|yes|no|on|off)")
_NUMBER = re.compile(r"(?i)[+-]?[\d.]{1,12}(?:e[+-]?\d+)?")
# After a vendor's bare name a key is one long word; a project or a mode is not: --wandb online.
_VENDOR_NAME = re.compile(r"(?i)-{0,2}(?:comet|neptune|wandb|clearml)")
_VENDOR_KEY = re.compile(r"(?=\D*\d)(?:[A-Za-z0-9]{20,}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})")

_SCHEME = r"(?:bearer|basic|token|digest|negotiate|apikey)"
# In quotes, also with a prefix of Python's (f"..."), and in quotes that a shell or JSON has escaped; or one word.
_VALUE = rf"""(?P<value> (?:\b[bfru]{{1,2}})?(?: "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' ) | \\"[^"\\]*\\" | (?:{_SCHEME}\s+)?[^\s'",;&]+ )"""
_ASSIGNMENTS = (
    re.compile(
        rf"""(?ix) (?<![\w/]) (?P<name>-{{0,2}}(?=\w){_NAME}) (?P<join>\\?['"]?\]?\s*(?:=>|[=:])\s*) {_VALUE}"""
    ),
    # a call that sets it: os.environ.setdefault("HF_TOKEN", "...")
    re.compile(
        rf"""(?ix) (?:setdefault|putenv|setenv|setattr)\( [^()\n]{{0,100}}? (?P<name>(?<=["']){_NAME}) (?P<join>["']\s*,\s*) {_VALUE}"""
    ),
    # a program that stores it: aws configure set aws_secret_access_key ...
    re.compile(rf"""(?ix) \bset \s (?P<name>{_NAME}) (?P<join>\s) (?![-=:]) {_VALUE}"""),
    re.compile(rf"""(?ix) (?<!\S) (?P<name>-{{1,2}}{_NAME}) (?P<join>\s+) (?!-) {_VALUE}"""),
)
_WEAK_ASSIGNMENTS = (
    re.compile(rf"""(?ix) (?<![\w/]) (?P<name>-{{0,2}}(?=\w){_WEAK_NAME}) (?P<join>\s?=\s?) {_VALUE}"""),
    re.compile(rf"""(?ix) (?<!\S) (?P<name>-{{1,2}}{_WEAK_NAME}) (?P<join>\s+) (?!-) {_VALUE}"""),
    # In JSON such a word is a name, not prose: {"auth": "..."}
    re.compile(
        r"""(?ix) (?P<name>(?<=["'])(?:auth|pass|pwd)) (?P<join>\\?["']\s*:\s*) (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    ),
)
_OPTION, _WEAK_OPTION = (re.compile(rf"(?i)--?{name}") for name in (_NAME, _WEAK_NAME))


def _grammar(needed: str, pattern: str, flags: int = 0) -> tuple[tuple[str, ...], re.Pattern[str]]:
    return tuple(needed.split("|")), re.compile(pattern, re.VERBOSE | re.IGNORECASE | flags)


# Words of which one must be in the lower-case text, and a pattern whose group ``secret`` is hidden.
_GRAMMAR = (
    # up to its end, or to the end of what we have
    _grammar(
        "private key",
        r"""(?P<secret> -----BEGIN[ ][\w -]{0,100}PRIVATE[ ]KEY .*? (?: -----END[ ][\w -]{0,100}PRIVATE[ ]KEY[\w -]{0,20}-- | \Z))""",
        re.DOTALL,
    ),
    # a header, whole: Authorization: Basic X; that of Digest has quotes in it
    _grammar(
        "authorization:|cookie:",
        rf"""\b(?:authorization|cookie): \s* (?P<secret> digest\s[^\v\n']+ | (?:{_SCHEME}\s+)?[^\v\n'"]+)""",
    ),
    # scheme://user:password@host and scheme://token@host; a password may hold a slash, what stands behind a port may not
    _grammar(
        "://",
        r"""\b[a-z][a-z0-9+.-]{1,20}://
        (?P<secret> [^\s/'"]{1,2000} | [^\s/@'":]{0,100}:(?!\d+/)[^\s@'"]{1,400} ) @""",
    ),
    # the same without a scheme
    _grammar(
        "@",
        r"""(?<![\w/@:.+-])[\w.+-]{1,64}: (?P<secret>[^\s:@/'"]{3,64}) @(?= [A-Za-z][\w-]{0,62}(?: \.[A-Za-z] | :\d ) | localhost)""",
    ),
    _grammar("bearer|basic", r"\b(?:bearer|basic)\s+ (?=\S{0,400}[\d=._-]) (?P<secret>[\w.~+/=-]{12,})"),
    # a webhook is a secret as a whole: Slack, Discord, Teams, Google Chat, Power Automate
    _grammar(
        "hook|workflows|chat.googleapis",
        r"""https?://(?: [^\s/'"]{0,253}(?:hook|chat\.googleapis)[^\s/'"]{0,253}/
        | [^\s/'"]{1,253}/[^\s'"]{0,200}?(?: hooks?/ | workflows/(?=\S{0,400}sig=) )) (?P<secret>[^\s'"]+)""",
    ),
    _grammar("--notify", r"(?<!\S)--notify (?:=|\s)\s* (?P<secret>[^\s@]\S*)"),  # our own, of a perfwatch below a job
    # signed URLs (AWS, GCS, Azure), and codes in a query
    _grammar(
        "?|&",
        r"""[?&](?: X-Amz-(?:Signature|Credential|Security-Token) | X-Goog-(?:Signature|Credential) | sig(?:nature)? | code | key
        | pw | auth ) = (?P<secret>[^\s&'"]{6,})""",
    ),
    _grammar("xox", r"\b(?P<secret> xox[abeoprs]-[\w-]{10,})"),  # Slack, whose prefix is like nothing else
    _grammar("eyj", r"(?P<secret> \beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)? )"),  # JSON web token
    _grammar(
        "login|auth",
        r"(?<![\w-])(?:login|auth)[=\s]\s? (?P<secret> [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12} ) (?![\w-])",
    ),
)

# A hexadecimal word of these lengths is a Weights & Biases key (40) or a session secret (32, 64), unless its name calls it a
# commit or a checksum.
_HEX = re.compile(r"(?<![\w/.:-])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{86})(?![\w/.-])", re.IGNORECASE)
_LONGEST_NAME_OF_A_COMMIT = 24
_OF_A_COMMIT = re.compile(
    r"(?ix) (?:commit|revision|rev|ref|sha\d*|hash|digest|checksum|md5|tree|head|run[_-]?id) (?:[_-](?:id|hash|sha))?"
    r"[\"']? \s{0,2} [=:\s] \s{0,2} [\"']? $"
)
_LONG_WORD = re.compile(r"(?<![\w/+.~-])[A-Za-z0-9_+/=-]{24,}(?![\w+=-])")
_WORD = re.compile(r"""(?:'[^'\v]*'|"[^"\v]*"|\S)+""")
_URL = re.compile(r"""(?i)\bhttps?://[^\s'"]+""")
_PART_OF_URL = re.compile(r"(?<=[/=])[A-Za-z0-9_-]{24,}(?=[/?&#]|$)")
# Random base64 of 40 characters has about 4.7 bits a character, English and identifiers below 4.0 (measured on this
# code base).
_RANDOM_BITS = 4.2
# Shorter words have too few letters for that. There a random word changes between small, capital and digit at 6 of 10 letters, an
# identifier at its few joints.
_LONG_LETTERS, _SHORT_RANDOM_BITS, _RANDOM_CHANGES = 28, 3.6, 0.45
# OWNER/NAME of a model or data set, of words and short numbers: CompVis/stable-diffusion-v1-4. A key's letters do not part so.
# No two ways to read a run of digits: it would be tried in all of them.
_OF_A_HUB = re.compile(
    r"[A-Z]?[a-z]+(?:-?[A-Z][a-z]+|-[a-z]+|-?\d{1,2}(?!\d))*/[A-Z]?[a-z]+(?:[-_](?:[A-Z]?[a-z]+|[A-Z]+|v?\d{1,3}[A-Za-z]?))*"
)


def redact(text: str) -> str:
    """The same text, with ``[redacted]`` for everything that looks like a secret. Twice is the same as once.

    What is not UTF-8 in a command line reaches Python as lone surrogates, which no JSON can hold: each becomes ``?``.
    Cost: 30 us for a path, 0.1 us when it was seen lately.
    """
    return _judged(_bounded(text))


def redact_command(arguments: Iterable[str]) -> tuple[str, ...]:
    """A command line, word by word. A word is judged with those before it: ``--token X``, ``mysql -pX``, ``Basic X``."""
    words = [_bounded(word.replace(_BETWEEN, " ")) for word in arguments]
    hidden: list[str] = []
    hide_next = hide_text = False
    for before, word in zip(("", *words), words, strict=False):
        harmless = word.startswith("--") or (hide_text and _is_plain(before, word))
        hidden.append(REDACTED if (hide_next or hide_text) and word and not harmless else word)
        is_option = word.startswith("-")
        hide_next = is_option and bool(_OPTION.fullmatch(word)) and not _HARMLESS_NAME.fullmatch(word.lstrip("-"))
        hide_text = is_option and not hide_next and bool(_WEAK_OPTION.fullmatch(word))
    if may_hold_passwords(_BETWEEN.join(words)):
        for index, begin, end in hidden_parts(words):
            if hidden[index] is words[index]:
                hidden[index] = words[index][:begin] + REDACTED + words[index][end:]
    return tuple(_judged_together(hidden))


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


def _judged_together(words: list[str]) -> list[str]:
    """The words, redacted as one text, in batches of bounded length."""
    found: list[str] = []
    batch: list[str] = []
    length = 0
    for word in words:
        if batch and length + len(word) > LONGEST_TEXT:
            found += _batch(batch)
            batch, length = [], 0
        batch.append(word)
        length += len(word)
    return found + (_batch(batch) if batch else [])


def _batch(words: list[str]) -> list[str]:
    """An option gets the equals sign that most patterns ask for: ``--sentry X`` is judged as ``--sentry= X``."""
    takes_next = [
        word.startswith("-") and "=" not in word and " " not in word and after != "" and not after.startswith("-")
        for word, after in zip(words, (*words[1:], ""), strict=True)
    ]
    text = _BETWEEN.join(f"{word}=" if takes else word for word, takes in zip(words, takes_next, strict=True))
    parts = _judged(text).split(_BETWEEN)
    return [part.removesuffix("=") if takes else part for part, takes in zip(parts, takes_next, strict=True)]


def _bounded(text: str) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_TEXT + len(CUT) else text[:LONGEST_TEXT] + CUT


def _judged(text: str) -> str:
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _redact(text)


def _redact(text: str) -> str:
    if may_hold_passwords(text):
        text = _without_passwords(text)
    lower = text.lower()
    for needed, pattern in _GRAMMAR:
        for part in needed:  # no generator: this is most of what a harmless text costs
            if part in lower:
                text = pattern.sub(_hide_secret, text)
                break
    if [part for part in _NAME_PARTS if part in lower]:
        for pattern in _ASSIGNMENTS:
            text = pattern.sub(_hide_value, text)
        for pattern in _WEAK_ASSIGNMENTS:
            text = pattern.sub(_hide_weak_value, text)
    text = hide_vendor_tokens(text, _hide)
    text = _HEX.sub(_hide_hex, text)
    if "://" in lower:
        text = _URL.sub(lambda match: _PART_OF_URL.sub(_hide_random, match[0]), text)
    return _LONG_WORD.sub(_hide_random, text)


_remembered = lru_cache(MOST_REMEMBERED)(_redact)


def _without_passwords(text: str) -> str:
    """Without what options take, in a text of several words: a shell's script, a line of a log."""
    words = list(_WORD.finditer(text))
    parts, done = [], 0
    for index, begin, end in hidden_parts([word[0] for word in words]):
        at = words[index].start()
        parts += [text[done : at + begin], REDACTED]
        done = at + end
    return "".join((*parts, text[done:]))


@lru_cache(MOST_REMEMBERED)
def _is_secret_name(name: str) -> bool:
    return bool(_OPTION.fullmatch(f"--{name}")) and not _HARMLESS_NAME.fullmatch(name)


def _is_plain(name: str, value: str) -> bool:
    """True if the value of a weak name is no secret."""
    value = value.strip("\"'")
    if _VENDOR_NAME.fullmatch(name):
        return not _VENDOR_KEY.fullmatch(value)
    return bool(_NUMBER.fullmatch(value) or _SWITCH.fullmatch(value))


def _hide(secret: str) -> str:
    """What stands for a secret. It may reach over several words of a command line, which stay as many."""
    return _BETWEEN.join([REDACTED] * (secret.count(_BETWEEN) + 1))


def _hide_secret(match: re.Match[str]) -> str:
    begin, end = match.start("secret") - match.start(), match.end("secret") - match.start()
    return match[0] if match["secret"] == REDACTED else match[0][:begin] + _hide(match["secret"]) + match[0][end:]


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    if match["join"].strip() == ":" and _SOURCE.fullmatch(match["name"]) and _LINE.fullmatch(value):
        return match[0]
    quote = '\\"' if value.startswith('\\"') else value[0] if value[0] in "\"'" else ""
    if _HARMLESS_NAME.fullmatch(match["name"].lstrip("-")) or _SWITCH.fullmatch(value.strip(quote or None)):
        return match[0]
    before = match[0][: match.start("value") - match.start()]
    return f"{before}{quote}{_hide(value)}{quote}"


def _hide_weak_value(match: re.Match[str]) -> str:
    return match[0] if _is_plain(match["name"], match["value"]) else _hide_value(match)


def _hide_hex(match: re.Match[str]) -> str:
    begin = match.start()
    return (
        match[0] if _OF_A_COMMIT.search(match.string[max(0, begin - _LONGEST_NAME_OF_A_COMMIT) : begin]) else REDACTED
    )


def _hide_random(match: re.Match[str]) -> str:
    return REDACTED if _looks_random(match[0]) else match[0]


def _looks_random(word: str) -> bool:
    if _OF_A_HUB.fullmatch(word):
        return False
    kinds = [0 if letter.islower() else 1 if letter.isupper() else 2 for letter in word if letter.isalnum()]
    if len(set(kinds)) < 3 or word.startswith("/"):
        return False
    if len(word) >= _LONG_LETTERS:
        return bits_per_letter(word) >= _RANDOM_BITS
    changes = sum(one != other for one, other in itertools.pairwise(kinds))
    return changes >= _RANDOM_CHANGES * len(word) and bits_per_letter(word) >= _SHORT_RANDOM_BITS
