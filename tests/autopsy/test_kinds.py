"""What lies beside logs and is none: known by its content, whatever its name; and logs that look like it."""

import pytest

from perfwatch.autopsy.kinds import LOG, REFUSED, kind_of
from tests.autopsy.test_wild import logs

PROGRAM = "import torch\n\n\ndef main():\n    print('Traceback (most recent call last):')\n    raise RuntimeError('CUDA error')\n"
TEXTS = {
    "program": ("Python source file", PROGRAM),
    "long program": ("Python source file", "import torch\n" + "def step(x):\n    return (x +\n        1)\n\n" * 3000),
    "package": ("Python source file", '"""Losses: Killed by signal 9."""\n'),
    "script": ("program text", "#!/bin/bash\n#SBATCH --time=01:00:00\nsrun python train.py || echo error\n"),
    "kernel": ("program text", "#include <cuda.h>\n__global__ void add(float* x) { x[0] += 1; }\n"),
    "yaml": ("configuration file", "lr: 0.1\nmodel:\n  name: vit\n  depth: 12\ndata:\n  name: c4\n  paths:\n    - /data/a\n"),
    "toml": ("configuration file", '[train]\nlr = 0.1\nsteps = 100\n[eval]\nsteps = 10\n'),
    "requirements": ("configuration file", "torch==2.11.0\nnumpy>=1.26\neinops~=0.8\n"),
    "json": ("configuration file", '{\n  "lr": 0.1,\n  "betas": [0.9, 0.95]\n}\n'),
    "csv": ("table", "step,loss,lr\n1,0.5,0.1\n2,0.4,0.1\n"),
    "readme": ("document", "# Training\n\nRun it.\n\n## Errors\n\nRuntimeError means that it failed.\n"),
}  # fmt: skip
LOGS = {
    "one word": "done\n",
    "python in a log": "x = 1\nprint(x)\n",
    "slurm": "srun: error: node1: task 0: Killed\nslurmstepd: error: *** STEP 7 CANCELLED ***\nbash: line 1: 12 Killed\n",
    "metrics": "step: 1\nloss: 0.5\nstep: 2\nloss: 0.4\n",
    "json lines": '{"level": "info", "msg": "step 1"}\n{"level": "error", "msg": "CUDA out of memory"}\n',
    "one json line": '{"message": "RuntimeError: x", "extraInfo": {"timestamp": 1}}\n',
    "echoed script": "#!/bin/bash\npython train.py\n2026-11-20 11:51:24 ERROR CUDA out of memory\n",
    "configuration, then an end": "lr: 0.1\ndepth: 12\nsteps: 7\nRuntimeError: CUDA error\nKilled\n",
    "commas": "2026-11-20 11:51:24,123 INFO step\n2026-11-20 11:51:25,123 INFO step\n2026-11-20 11:51:26,123 INFO end\n",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_log_is_known_by_its_content(name: str) -> None:
    """And what to give instead is said."""
    kind, text = TEXTS[name]

    assert kind_of(text.encode()[:65536]) == kind
    assert kind in REFUSED


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_looks_like_another_text_is_a_log(name: str) -> None:
    """The benefit of the doubt is a log's."""
    assert kind_of(LOGS[name].encode()) == LOG


def test_no_log_from_the_wild_is_taken_for_another_text() -> None:
    """None of those that people have posted."""
    assert [text[:80] for _, text in logs() if kind_of(text.encode()) != LOG] == []


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "status": {\n    "reason": "OOMKilled",\n    "exitCode": 137\n  }\n}\n',
        "JobID,State,ExitCode\n12,OUT_OF_MEMORY,0:125\n12.batch,OUT_OF_MEMORY,0:125\n",
        "seed: 42\nepochs: 3\ntorch.cuda.OutOfMemoryError: CUDA out of memory.\n",
        "#!/bin/bash -x\npython train.py\n/var/spool/job: line 2: 4242 Killed python train.py\n",
    ],
)
def test_a_text_that_tells_of_an_end_is_read_whatever_it_looks_like(text: str) -> None:
    """The state of a pod, a table of Slurm's, a log that begins with its settings or its script."""
    assert kind_of(text.encode()) == LOG
