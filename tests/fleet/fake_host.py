"""Stands in for perfwatch on a host: what it does is written in a file, by Slurm's name of the node or the port of its sshd.

    fake_host.py FILE snapshot --seconds=8 --nonce=... [...]

FILE holds a JSON object: host to one of "0", "1", ... (the simulated host of that number), garbage, flood, hang, missing,
broken.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
STUCK_RANK, HOSTS = 9, 2


def main() -> None:
    """Do what this host does."""
    ssh = os.environ.get("SSH_CONNECTION", "").split()[3:]
    here = os.environ.get("SLURMD_NODENAME") or (ssh[0] if ssh else os.environ["HOSTNAME"])
    does = json.loads(Path(sys.argv[1]).read_text())[here]
    nonce = next(word.partition("=")[2] for word in sys.argv if word.startswith("--nonce="))
    if does == "garbage":
        print(f"perfwatch-snapshot {nonce} 0 2 00000000 AAAA\n\x1b[2J{{}}\nSegmentation fault")
    elif does == "flood":
        while True:
            os.write(1, b"x" * 65536)  # a line without an end
    elif does == "hang":
        time.sleep(600)
    elif does == "broken":
        print("Welcome to this host", flush=True)
        sys.exit("perfwatch: PermissionError: /var/tmp")
    elif does == "missing":
        os.execvp("sh", ["sh", "-c", "exec /no/such/perfwatch"])
    else:
        from simulated_fleet import snapshots

        from perfwatch.fleet.wire import lines

        print("Last login: never")
        print("\n".join(lines(snapshots(HOSTS, STUCK_RANK)[int(does)], nonce)))


main()
