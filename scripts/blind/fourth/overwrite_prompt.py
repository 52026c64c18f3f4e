"""FIELD
source: own ("overwrite? [y/n]" in a batch job)
mechanism: a helper asks on the terminal before it overwrites the export directory; the job runs in a terminal that is not watched
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_input
blame: confirm (overwrite_prompt.py), export (overwrite_prompt.py)
twin: none
"""

import os
import pty
import signal
import sys
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
master, terminal = pty.openpty()  # the job was started inside a terminal multiplexer
os.dup2(terminal, 0)
sys.stdin = os.fdopen(0, "r", closefd=False)
folder = tempfile.mkdtemp()


def confirm(question):
    answer = ""
    while answer not in ("y", "n"):
        sys.stdout.write(question + " [y/n] ")
        sys.stdout.flush()
        answer = sys.stdin.readline().strip()
    return answer == "y"


def export(model, step):
    target = os.path.join(folder, "export.pt")
    if os.path.exists(target):
        print("ONSET", flush=True)
        if not confirm(f"{target} exists, overwrite?"):
            return
    torch.save(model.state_dict(), target)
    print("exported at", step, flush=True)


model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(1, 10**6):
    x = torch.randn(8, 24, 64)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
    if step % 200 == 0:
        export(model, step)
