"""What Kineto is inside a rank, as far as a capture can tell: asks its endpoint, and does with a window what it is told to.

    fake_profiler.py FOLDER BEHAVIOUR

BEHAVIOUR: garbage (writes a trace that is none), ignores (takes the window and does nothing), memory (writes a snapshot).
"""

import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path

folder, behaviour = sys.argv[1:]
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f"{folder}/dynoconfigclient-{os.getpid()}")
client.settimeout(5.0)
library = Path(folder) / "libtorch_cuda.so"
library.write_bytes(bytes(4096))
with library.open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("asks", flush=True)
while True:
    payload = struct.pack("<iiqi", 3, 1, 0, os.getpid())
    client.sendto(struct.pack("<Q32s", len(payload), b"req") + payload, f"{folder}/dynolog")
    text = client.recv(65536)[40:].decode()
    told = dict(line.split("=", 1) for line in text.splitlines())
    if told and behaviour == "garbage":
        stem, _ = os.path.splitext(told["ACTIVITIES_LOG_FILE"])
        Path(f"{stem}_{os.getpid()}.json").write_bytes(b'{"traceEvents": [\n  {"ph": "X"' + b"\xff" * 100)
    if told.get("PROFILE_MEMORY") and behaviour == "memory":
        Path(f"/tmp/memory_snapshot_{os.getpid()}.pickle").write_bytes(b"\x80\x04N.")
    time.sleep(0.05)
