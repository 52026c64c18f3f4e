"""List, show, unpack and add the recorded cases of tests/cases.

scripts/case list [CAUSE ...]            a line per case: verdict, duration, number of readings, size, trimmed or whole
scripts/case show CASE                   a case as text; CASE is CAUSE/KIND/NAME or a file
scripts/case unpack CASE FOLDER          a session folder for perfwatch replay, report and top
scripts/case add SESSION CAUSE/KIND/NAME the session of an incident becomes a case

``git diff`` shows a changed case as text after this command, once per clone (.gitattributes names the driver):

    git config diff.case.textconv "scripts/case show"
"""

import argparse
import sys
from pathlib import Path

import msgspec

from perfwatch.gauntlet import recorded
from perfwatch.recording.recording import load

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("causes", nargs="*")
    commands.add_parser("show").add_argument("case", type=found)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("case", type=found)
    unpacking.add_argument("folder", type=Path)
    adding = commands.add_parser("add")
    adding.add_argument("session", type=Path)
    adding.add_argument("case")
    options = parser.parse_args()
    if options.command == "list":
        list_cases(options.causes)
    elif options.command == "show":
        sys.stdout.writelines(shown(options.case))
    elif options.command == "unpack":
        print(recorded.unpack(options.case, options.folder))
    else:
        add(options.session, CASES / options.case)
    return 0


def found(name: str) -> Path:
    """The case of that name or file."""
    for case in (CASES / name, Path(name).absolute()):
        if recorded.case_file(case).exists():
            return case.with_name(case.name.removesuffix(recorded.SUFFIX))
    if Path(name).exists():  # git calls the old version of a file as it likes
        return Path(name).absolute()
    raise argparse.ArgumentTypeError(f"no case {name}; scripts/case list prints all of them")


def list_cases(causes: list[str]) -> None:
    """Print a line per case."""
    for case in recorded.cases(CASES):
        name = case.relative_to(CASES)
        if causes and name.parts[0] not in causes:
            continue
        recording, expected = recorded.load_case(case), recorded.accepted(case)
        said = f"{expected.state}/{expected.cause}" if expected else "no verdict accepted"
        whole = "trimmed" if recording.session.conditions.get("trimmed") else "whole"
        size = recorded.case_file(case).stat().st_size / 1024
        print(f"{name}  {said}  {recording.end:.1f} s  {len(recording.records)} readings  {size:.1f} KiB  {whole}")


def shown(case: Path) -> list[str]:
    """The lines of a case as text: the session indented, then the time, type and fields of each event and reading."""
    head, *lines = recorded.case_text(case).splitlines()
    texts = [msgspec.json.format(head, indent=2).decode(), ""]
    for line in lines:
        entry = msgspec.json.decode(line)
        if "event" in entry:
            fields = entry["event"]
            at, kind = fields.pop("at"), f"event {fields.pop('kind')}"
        else:
            fields = entry["reading"]
            at, kind = entry["at"], fields.pop("type")
            if "known_at" in entry:
                fields["known_at"] = entry["known_at"]
        texts.append(f"{at:10.4f} {kind} {msgspec.json.encode(fields).decode()}")
    return [f"{text}\n" for text in texts]


def add(session: Path, case: Path) -> None:
    """Store a session folder as a case and accept its last verdict."""
    recording = load(session)
    recorded.store(case, recording, recording.records, {"trimmed": False}, {})
    expected = recorded.judged(recorded.load_case(case), recording.end)
    recorded.accept(case, expected)
    print(f"{case.relative_to(CASES)}: {expected}")


if __name__ == "__main__":
    sys.exit(main())
