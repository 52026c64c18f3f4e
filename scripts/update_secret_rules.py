"""Make ``launcher/perfwatch/recording/secret_rules.json`` from the rules of gitleaks (MIT): ``update_secret_rules VERSION FILE LICENCE``.

FILE is ``config/gitleaks.toml`` of that version, LICENCE its ``LICENSE``. Of each rule only the facts are kept: its name, the
words that must be in a text before it is worth a search, the pattern, the group that holds the secret, and how random that must
be. Patterns are written for Go's RE2; what Python's ``re`` spells otherwise is spelled anew here.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECORDING = Path(__file__).resolve().parent.parent / "launcher" / "perfwatch" / "recording"
# Rules that hide too much, that need a file's path, or that redaction.py does better: it also knows a key without an end.
DROPPED = {
    "generic-api-key": "any long word after a common name",
    "private-key": "needs the end of the key",
    "curl-auth-header": "slow on long lines; headers are hidden for every program",
    "curl-auth-user": "slow on long lines; -u is read by the option",
}
# What shows an identifier before the vendor's name: it makes no difference to what is hidden, and is slow.
_BEFORE_NAME = (r"[\w.-]{0,50}?",)
# A secret in a file ends with white space or a quote. In a URL, a list or JSON it ends otherwise too.
_END_IN_A_FILE = (r"""(?:[\x60'"\s;]|\\[nr]|$)""", r"(?:[^\w-]|\z)", r"(?:[^a-zA-Z0-9+/]|\z)")
_END = r"""(?=[\x60'"\s;,&<>|)\]}]|\\[nr]|$)"""
_CLASSES = {"[:alnum:]": "a-zA-Z0-9", "[:digit:]": "0-9", "[:alpha:]": "a-zA-Z"}
_FLAG = re.compile(r"\(\?([is]+)\)")
# The constant start of a vendor's tokens, as far as a separator: p8e-, glpat-, hvs.
_PREFIX = re.compile(
    r"(?:\(\?i\))?(?:\\b)?\(*(?:\?:)?([A-Za-z][A-Za-z0-9_-]*(?:[_-]|\\\.)|[A-Za-z]{2,}\\\.)(?=[(\[\\])"
)
SHORTEST_PREFIX = 3


def in_python(pattern: str) -> str:
    """A pattern of RE2 in the words of ``re``.

    A flag in the middle of a group holds to the end of that group: it becomes a group with the flag, once for each alternative.
    """
    for text in _BEFORE_NAME:
        pattern = pattern.replace(text, "")
    for text in _END_IN_A_FILE:
        pattern = pattern.replace(text, _END)
    for name, letters in _CLASSES.items():
        pattern = pattern.replace(name, letters)
    made: list[str] = []
    flags = [""]  # of each open group, those set in its middle
    at, in_class = 0, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            made.append(r"\Z" if pattern[at + 1] == "z" else pattern[at : at + 2])
            at += 2
            continue
        if in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        elif found := _FLAG.match(pattern, at):
            made.append((")" if flags[-1] else "") + f"(?{found[1]}:")
            flags[-1] = found[1]
            at = found.end()
            continue
        elif letter == "(":
            flags.append("")
        elif letter == ")":
            made.append(")" if flags.pop() else "")
        elif letter == "|" and flags[-1]:
            made.append(f")|(?{flags[-1]}:")
            at += 1
            continue
        made.append(letter)
        at += 1
    return "".join(made) + (")" if flags[0] else "")


def rule(read: dict[str, Any]) -> dict[str, Any] | None:
    """One rule; None where it needs a path or is dropped."""
    if "path" in read or read["id"] in DROPPED:
        return None
    pattern = in_python(read["regex"])
    re.compile(pattern, re.ASCII)
    prefix = _PREFIX.match(read["regex"])
    made = {"id": read["id"], "keywords": read["keywords"], "pattern": pattern}
    made |= {"entropy": read["entropy"]} if "entropy" in read else {}
    made |= {"group": read["secretGroup"]} if "secretGroup" in read else {}
    if prefix and len(prefix[1]) >= SHORTEST_PREFIX:
        made["prefix"] = prefix[1].replace("\\", "")
    return made


def main(version: str, rules: str, licence: str) -> None:
    """Write the data file and the licence beside it."""
    read = tomllib.loads(Path(rules).read_text())["rules"]
    made = [one for one in map(rule, read) if one is not None]
    lines = ",\n".join(json.dumps(one) for one in made)
    header = {
        "source": f"gitleaks {version}, config/gitleaks.toml, MIT (secret_rules.LICENSE)",
        "made_by": "scripts/update_secret_rules.py",
    }
    text = json.dumps(header)[:-1] + f',\n"rules": [\n{lines}\n]}}\n'
    (RECORDING / "secret_rules.json").write_text(text)
    (RECORDING / "secret_rules.LICENSE").write_text(Path(licence).read_text())
    print(f"{len(made)} of {len(read)} rules")


if __name__ == "__main__":
    main(*sys.argv[1:])
