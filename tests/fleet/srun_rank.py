"""A rank as srun starts it: it takes its place from Slurm's own variables; rank 1's DataLoader worker never returns."""

import os
import runpy
import sys
from pathlib import Path

os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
drill = Path(__file__).parents[2] / "launcher" / "drills" / "stalled_collective_loader.py"
sys.path.insert(0, str(drill.parent))
sys.argv = [str(drill), "--steps", "3"]
runpy.run_path(str(drill), run_name="__main__")
