"""Every rank is in the same all_reduce and nothing arrives: the network between them drops all their data.

The kernel is asked to drop what comes in on the connections that carried gradients; no privilege is needed for that. With
NCCL the cards are made to talk over sockets, as between hosts without a fabric.
"""

import ctypes
import itertools
import os
import socket
import struct

import stage

SO_ATTACH_FILTER, TCP_INFO_BYTES_RECEIVED = 26, 128  # asm-generic/socket.h; linux/tcp.h
DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0 bytes
CARRIED_BYTES = 500_000


def pull_the_cable() -> None:
    code = ctypes.create_string_buffer(DROP, len(DROP))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                    continue
                told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                if struct.unpack_from("=Q", told, TCP_INFO_BYTES_RECEIVED)[0] > CARRIED_BYTES:
                    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        except OSError:
            continue


def main() -> None:
    args = stage.arguments(__doc__)
    if args.backend == "nccl":
        os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
        os.environ |= {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    import ranks
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = ranks.join(args)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in itertools.count():
        if step == args.steps:
            dist.barrier()
            pull_the_cable()
            stage.onset(rank=dist.get_rank())
        sgd.zero_grad()
        loss = net(torch.randn(64, 512, device=device)).square().mean()
        loss.backward()
        sgd.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
