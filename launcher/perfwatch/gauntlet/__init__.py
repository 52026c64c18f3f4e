"""The gauntlet: run drills, ask perfwatch about each, compare the answer with the expected one. README.md lists the modules."""
