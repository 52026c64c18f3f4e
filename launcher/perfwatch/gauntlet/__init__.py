"""The gauntlet: start real sick programs, ask perfwatch about each, hold the answers against what is true.

- ``choice``   which drills, under which conditions; what this machine lacks for some (``needs``)
- ``program``  one drill on its feet: started, heard, ended with everything that it started
- ``asking``   ask perfwatch as a user would: the command line, its JSON, its exit code
- ``attempt``  one drill, once, to one row; or all of them
- ``rows``     the rows on disk, so that an interruption loses nothing
- ``score``    rows to figures, pure arithmetic; ``perfwatch.gauntlet.report`` prints them
- ``show``     the three things that ``perfwatch drill`` does: list, one, all
"""
