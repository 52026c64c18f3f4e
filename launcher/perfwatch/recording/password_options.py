"""Options that take a password and do not say so: ``mysql -pX``, ``sshpass -p X``, ``curl -u user:X``.

``-p`` is a port, a partition or a profile to most programs. It takes a password after a user's name (``docker login -u ann -p X``)
and in the programs of ``_OPTIONS``. Sources: the manuals of these programs.
"""

import re
from collections.abc import Iterator, Sequence

# By program: options that are followed by a password, and options that a password is part of (-pX).
_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sshpass": (("-p",), ("-p",)),
    **dict.fromkeys(
        ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlsh", "mariadb", "mariadb-dump", "mariadb-admin"),
        ((), ("-p",)),
    ),
    **dict.fromkeys(
        ("mongo", "mongosh", "mongodump", "mongorestore", "mongoimport", "mongoexport"), (("-p",), ("-p",))
    ),
    "redis-cli": (("-a",), ()),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami", "ldapdelete"), (("-w",), ("-w",))),
    **dict.fromkeys(("sqlcmd", "bcp", "isql", "tsql", "unzip", "zip"), (("-P",), ("-P",))),
    **dict.fromkeys(("7z", "7za", "7zz"), ((), ("-p",))),
    "openssl": (("-pass", "-passin", "-passout", "-k", "-K"), ()),
    **dict.fromkeys(("keytool", "jarsigner"), (("-storepass", "-keypass"), ())),
    "ipmitool": (("-P",), ("-P",)),
    **dict.fromkeys(("http", "https", "xh"), (("-a",), ())),
}
_PASSWORD = ("-p", "-P")
# Options that a user's name follows, perhaps with a password behind a colon or a percent sign.
_USER = ("-u", "-U", "--user", "--username", "--proxy-user", "--login")
_USER_AND_PASSWORD = re.compile(r"(?P<user>[^\s:%/=]*)[:%](?P<password>(?!//)[^\s]+)")
_MAY_HOLD = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, (*_USER, *_OPTIONS)))})")
_ADDRESS = re.compile(r"(?:localhost|[^:]*\.[^:]*):\d{1,5}")  # and a port
_NUMBERS = re.compile(r"[\d:.,]+")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")


def may_hold_passwords(text: str) -> bool:
    """True if the text has one of the programs or options that ``hidden_parts`` looks for: few have."""
    return _MAY_HOLD.search(text) is not None


def hidden_parts(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Of a command line: the word, and where in it the password begins and ends."""
    alone: set[str] = set()  # the options of the programs so far
    joined: set[str] = set()
    has_user = False
    of_python = False  # the interpreter's own options: -u is unbuffered
    before = ""
    for index, word in enumerate(words):
        program = word.rpartition("/")[2]
        if program in _OPTIONS and not word.startswith("-"):
            alone.update(_OPTIONS[program][0])
            joined.update(_OPTIONS[program][1])
        if _PYTHON.fullmatch(program):
            of_python, has_user = True, False
        elif of_python:
            of_python = word.startswith("-")
        elif before in alone or (has_user and before in _PASSWORD):
            if not word.startswith("-") and (before in alone or not _is_port_or_path(word)):
                yield index, 0, len(word)
        elif joined and word[:2] in joined and len(word) > 2 and not word.startswith("--"):
            yield index, 2, len(word)
        elif (option := _user_option(before, word)) is not None:
            has_user = True
            found = _USER_AND_PASSWORD.fullmatch(word, option)
            if found and not _NUMBERS.fullmatch(word, option) and not _ADDRESS.fullmatch(word, option):
                yield index, found.start("password"), len(word)
        before = "" if of_python else word


def _is_port_or_path(word: str) -> bool:
    """True for what ``-p`` takes in ``docker run -p 8080:80`` and ``mkdir -p /data``."""
    return bool(_NUMBERS.fullmatch(word)) or word.startswith(("/", "./"))


def _user_option(before: str, word: str) -> int | None:
    """Where in a word the user's name begins; None where it holds none."""
    if before in _USER and not word.startswith("-"):
        return 0
    for option in _USER:
        if option.startswith("--") and word.startswith(f"{option}="):
            return len(option) + 1
        if len(option) == 2 and word.startswith(option) and ":" in word:  # curl -uann:hunter2
            return 2
    return None
