"""FIELD
source: wandb/wandb#4441 (the run waits at its end: "it is just very very slow at uploading", 15 to 20 minutes per run)
mechanism: the training thread uploads a checkpoint in one PUT to a receiver that takes some 200 KB per second, and bytes flow all the time
needs: cpu
ranks: 1
onset: printed
state: busy
cause: checkpointing, waiting_on_work, downloading
blame: none
twin: none
"""
import http.client
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

torch.set_num_threads(1)

RECEIVER = r"""
import signal, socket, time
signal.alarm(890)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
listener.bind(("127.0.0.1", 0))
listener.listen(4)
print(listener.getsockname()[1], flush=True)
while True:
    conn, _ = listener.accept()
    stream = conn.makefile("rb")
    stream.readline()
    length = 0
    while True:
        line = stream.readline().strip()
        if not line:
            break
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while length > 0:
        chunk = stream.read(min(16384, length))
        if not chunk:
            break
        length -= len(chunk)
        time.sleep(0.08)
    conn.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    stream.close()
    conn.close()
"""


def upload_artifact(port, path, name):
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    with open(path, "rb") as f:
        conn.request("PUT", f"/artifacts/{name}", body=f, headers={"Content-Length": str(os.path.getsize(path))})
        status = conn.getresponse().status
    conn.close()
    return status


def main():
    receiver = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    port = int(receiver.stdout.readline())
    model = nn.Sequential(nn.EmbeddingBag(40_000, 128), nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 100))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    path = os.path.join(tempfile.mkdtemp(), "model.ckpt")
    try:
        for epoch in range(3):
            for _ in range(150):
                ids, y = torch.randint(0, 40_000, (64, 32)), torch.randint(0, 100, (64,))
                loss = nn.functional.cross_entropy(model(ids), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
            if epoch == 1:
                torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": epoch}, path)
                print("ONSET", flush=True)
                print("upload", upload_artifact(port, path, "run-1/model.ckpt"), flush=True)
                os.remove(path)
    finally:
        receiver.terminate()


if __name__ == "__main__":
    main()
