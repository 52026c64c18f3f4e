"""A stand-in for NCCL's RAS service: answers recorded reports, line by line as the real one does, or misbehaves.

    python ras_service.py PORT REPORT_JSON REPORT_TEXT MANNER [HOST]

MANNER is one of old, silent, torn, web, or empty. Prints one line when it listens, then one for every client that it has
greeted and one for every report that it was asked for. {PID} in a report becomes its own pid.
"""

import os
import socket
import sys
from pathlib import Path


def serve(port: int, report: str, text: str, manner: str, host: str) -> None:
    """Answer one client after another."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen()
        print("listening", listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                try:
                    talk(client, report, text, manner)
                except OSError:
                    continue


def talk(client: socket.socket, report: str, text: str, manner: str) -> None:
    """The lines of one client."""
    answer = text
    for raw in client.makefile("rb"):
        line = raw.decode().strip().lower()
        if manner == "silent":
            continue
        if manner == "web":
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        if line.startswith("client protocol"):
            print("greeted", flush=True)
            client.sendall(b"SERVER PROTOCOL 2\n")
        elif line.startswith("timeout"):
            client.sendall(b"OK\n")
        elif line.startswith("set format") and manner != "old":
            answer = report
            client.sendall(b"OK\n")
        elif line == "verbose status":
            print("asked", flush=True)
            whole = answer.replace("{PID}", str(os.getpid())).encode()
            client.sendall(whole[: len(whole) // 2] if manner == "torn" else whole)
            return
        else:
            client.sendall(f"ERROR: Unknown command {line}\n".encode())


if __name__ == "__main__":
    _, number, as_json, as_text, manner, *hosts = sys.argv
    serve(int(number), Path(as_json).read_text(), Path(as_text).read_text(), manner, *hosts or ["127.0.0.1"])
