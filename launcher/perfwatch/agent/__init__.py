"""What runs inside training: ``on_path/sitecustomize.py``, and the modules here that it loads by path when they are needed.

``perfwatch run`` puts ``on_path`` first on PYTHONPATH. A module beside ``sitecustomize.py`` would hide the program's module of that
name, so the others lie here.
"""
