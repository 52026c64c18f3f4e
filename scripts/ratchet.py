"""Numbers of the repository that may only go down.

    .venv/bin/python scripts/ratchet.py            print them; exit with 1 if one is above its limit
    .venv/bin/python scripts/ratchet.py --lower    write today's numbers as limits where they are lower

The limits stand in ``scripts/ratchet.toml``. To raise one, edit the file by hand and say why beside it.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / "scripts" / "ratchet.toml"
SOURCE_ROOTS = ("launcher", "probes")
TRIAGE = "perfwatch.triage"


def tracked() -> list[Path]:
    """Files that git tracks or would add, as they are now."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def modules(files: list[Path]) -> dict[str, ast.Module]:
    """Parsed modules of the source roots by dotted name, without the programs of the drills."""
    found = {}
    for path in files:
        parts = path.relative_to(ROOT).parts
        if parts[0] in SOURCE_ROOTS and path.suffix == ".py" and "programs" not in parts:
            dotted = parts[1:-1] if path.stem == "__init__" else (*parts[1:-1], path.stem)
            found[".".join(dotted)] = ast.parse(path.read_text())
    return found


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Modules that each module imports, wherever in it; the packages above a module do not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                known = target if target in trees else target.rpartition(".")[0]
                if known in trees and known != name:
                    found[name].add(known)
    return found


def layers(edges: dict[str, set[str]], package: str) -> int:
    """Modules on the longest chain of imports inside a package, which must have no cycle."""
    inside = {name for name in edges if name.startswith(f"{package}.")}

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(below) for below in edges[name] & inside), default=0)

    return max(map(depth, inside))


def constants(tree: ast.Module) -> int:
    """Names at module level that are bound to a number, or to a sum or product of numbers."""
    values = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    return sum(value is not None and _is_number(value) for value in values)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.UnaryOp) and _is_number(node.operand)


def measure() -> dict[str, int]:
    """Every number by its name, in the order in which they are printed."""
    files = tracked()
    trees = modules(files)
    edges = imports(trees)
    importers = Counter(target for targets in edges.values() for target in targets)
    triage = [name for name in trees if name == TRIAGE or name.startswith(f"{TRIAGE}.")]
    tests = [path for path in files if path.relative_to(ROOT).parts[0] == "tests"]
    source = [path for path in files if path.relative_to(ROOT).parts[0] in SOURCE_ROOTS and path.suffix == ".py"]
    return {
        "triage_files": len(triage),
        "triage_lines": sum(_lines(path) for path in source if "/perfwatch/triage/" in str(path)),
        "triage_numeric_constants": sum(constants(trees[name]) for name in triage),
        "triage_import_layers": layers(edges, TRIAGE),
        "modules_with_one_importer": sum(importers[name] == 1 for name in trees),
        "source_lines": sum(_lines(path) for path in source),
        "readme_bytes": (ROOT / "README.md").stat().st_size,
        "tests_files": len(tests),
        "tests_kilobytes": -(-sum(path.stat().st_size for path in tests) // 1000),
    }


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def main() -> None:
    """Print each number beside its limit; exit with 1 if one is above it or has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write today's numbers as limits where they are lower")
    options = parser.parse_args()
    text = LIMITS.read_text()
    limits = tomllib.loads(text)
    numbers = measure()
    grown = [name for name, number in numbers.items() if number > limits.get(name, -1)]
    for name, number in numbers.items():
        limit = limits.get(name)
        print(f"{name:28} {number:8,}  limit {limit if limit is None else format(limit, ',')}")
        if options.lower and limit is not None and number < limit:
            text = re.sub(rf"^{name} = \d+", f"{name} = {number}", text, flags=re.MULTILINE)
    if options.lower:
        LIMITS.write_text(text)
    if grown:
        sys.exit(
            f"ratchet: {', '.join(grown)}: above the limit. Make it smaller, or raise the limit in {LIMITS.name} and say why."
        )


if __name__ == "__main__":
    main()
