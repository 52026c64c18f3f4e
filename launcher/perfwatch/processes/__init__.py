"""perfwatch's own processes: how they meet (``place``), exchange messages (``channel``, ``control``) and start helpers."""
