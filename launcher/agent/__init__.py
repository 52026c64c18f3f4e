"""What runs inside training (``sitecustomize.py``), put first on PYTHONPATH by ``perfwatch run``."""
