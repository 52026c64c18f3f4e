"""Tokens of vendors, found by the rules of a maintained scanner, which are data: ``secret_rules.json``.

A rule is searched for only where one of its keywords is in the text, so most texts cost 220 substring tests (6 us). The file is
read with the first text, a pattern is compiled with its first keyword. Nothing here depends on the exact length of a token alone:
a vendor's prefix with a long random word behind it is a token too, whatever its length is by now.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import msgspec

RULES = Path(__file__).with_name("secret_rules.json")
Hide = Callable[[str], str]  # what stands where a secret stood

# Prefixes that the scanner lacks, or knows with one length alone: vendors of this trade.
_PREFIXES = (
    "sk_ pk_ pk- rk_ rk- ya29. AIza pypi- hf_ dckr_pat_ nvapi- wandb_v1_ r8_ gsk_ pat- hvr. dapi rpa_ tgp_v1_ csk- xai- "
    "lsv2_pt_ whsec_ sntrys_"
).split()
_TAIL = r"[\w.+=~-]{16,}"
_RUN = re.compile(r"(?=[A-Za-z]{0,64}[0-9])[A-Za-z0-9]{16,}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-")


class Rule(msgspec.Struct, frozen=True):
    """One form of a secret: see ``scripts/update_secret_rules.py``."""

    id: str
    keywords: tuple[str, ...]
    pattern: str
    entropy: float = 0.0
    group: int = 0  # 0: the first group that took part, or all of it
    prefix: str = ""


class _File(msgspec.Struct):
    source: str
    rules: tuple[Rule, ...]


def hide_vendor_tokens(text: str, hide: Hide) -> str:
    """The text without the tokens of vendors."""
    lower = text.lower()
    by_keyword, by_prefix = _catalogue()
    found = [by_keyword[keyword] for keyword in by_keyword if keyword in lower]
    for rule in {rule.id: rule for rules in found for rule in rules}.values():
        text = _compiled(rule.pattern).sub(partial(_hidden, rule, hide), text)
    for prefix in [prefix for prefix in by_prefix if prefix in text]:
        text = _after(prefix).sub(lambda match: hide(match[0]) if _is_token(match[1]) else match[0], text)
    return text


def bits_per_letter(word: str) -> float:
    """Shannon's entropy of its letters."""
    return -sum(count / len(word) * math.log2(count / len(word)) for count in Counter(word).values())


def _hidden(rule: Rule, hide: Hide, match: re.Match[str]) -> str:
    group = rule.group or next((number for number, one in enumerate(match.groups(), 1) if one), 0)
    secret = match[group] or ""
    if not secret or bits_per_letter(secret) < rule.entropy:
        return match[0]
    begin, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:begin] + hide(secret) + match[0][end:]


def _is_token(tail: str) -> bool:
    """True if what follows a prefix is drawn at random, and not a name: ``sk-learn-pipeline-2024``."""
    kinds = sum(any(map(test, tail)) for test in (str.islower, str.isupper, str.isdecimal))
    return bool(_RUN.search(tail)) or (kinds == 3 and bits_per_letter(tail) >= 3.7)


@cache
def _catalogue() -> tuple[dict[str, list[Rule]], tuple[str, ...]]:
    """Rules by keyword, and the prefixes."""
    rules = msgspec.json.decode(RULES.read_bytes(), type=_File).rules
    by_keyword: dict[str, list[Rule]] = {}
    for rule in rules:
        for keyword in rule.keywords:
            by_keyword.setdefault(keyword, []).append(rule)
    return by_keyword, tuple(dict.fromkeys((*(rule.prefix for rule in rules if rule.prefix), *_PREFIXES)))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@cache
def _after(prefix: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(prefix)}({_TAIL})", re.ASCII)
