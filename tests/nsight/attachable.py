"""A stand-in for an ncu that attaches (2026.2.1): a library with its two calls, and a script that answers as NVIDIA describes."""

import gzip
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
struct parameters { size_t size; void *private_part; };
static int say(const char *word, const struct parameters *given) {
    FILE *file = fopen(getenv("STANDIN"), "a");
    fprintf(file, "%s %zu\n", word, given->size);
    fclose(file);
    return getenv("STANDIN_CODE") ? atoi(getenv("STANDIN_CODE")) : 0;
}
int nvInjBeginProfiling(struct parameters *given) { return say("begin", given); }
int nvInjEndProfiling(struct parameters *given) { return say("end", given); }
"""
SCRIPT = """#!{python} -I
import os, shutil, sys, time
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
said = lambda: open(os.environ.get("STANDIN", "/dev/null")).read()
if "--version" in arguments: print("Version {version}.0 (build 1)")
elif "--help" in arguments: print(open({help!r}).read(), "{attaches}")
elif "--list-injection-path-64" in arguments: print({folder!r})
elif "--import" in arguments: shutil.copy({table!r}, value("--log-file"))
else:
    assert value("--mode") == "attach" and value("--process-id").isdigit() and "begin" in said()
    {behaviour}
    while "end" not in said(): time.sleep(0.02)
    print('==PROF== Profiling "k" - 0: 3 passes', file=open(value("--log-file"), "w"))
    open(value("--export"), "w").write("report")
"""
ATTACHES = "\\n  --process-id arg\\n  --list-injection-path-64\\n"


def built_library(folder: Path) -> Path:
    """The library; it needs a C compiler."""
    source, library = folder / "standin.c", folder / "libcuda-injection.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def attachable_ncu(
    folder: Path, behaviour: str = "pass", version: str = "2026.2.1", attaches: str = ATTACHES, named: str = ""
) -> Path:
    """The script; ``behaviour`` is what it does when it has attached, ``named`` the folder that it names for the library."""
    table = folder / "table.csv"
    table.write_bytes(gzip.decompress((HERE.parent / "traces/ncu_kernels.csv.gz").read_bytes()))
    program = folder / "ncu"
    help_text = str(HERE / "ncu_2025.3_help.txt")
    program.write_text(
        SCRIPT.format(
            python=sys.executable,
            version=version,
            help=help_text,
            attaches=attaches,
            folder=named or str(folder),
            table=str(table),
            behaviour=behaviour,
        )
    )
    program.chmod(0o755)
    return program
