"""What the agent (``agent/sitecustomize.py``) loads when it is needed: by path, and from a folder that is on no path of the program.

The agent's own folder is put first on PYTHONPATH by ``perfwatch run``, so whatever lies there hides the program's module of that name.
"""
