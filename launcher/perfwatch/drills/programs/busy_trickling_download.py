"""Look-alike of a dead peer: before training goes on, weights are downloaded at 8 kB/s; each ``recv`` waits, bytes do
arrive.
"""

import socket
import time
import urllib.request

import stage
import torch

SIZE = 6_000_000


def mirror(listener):
    while True:
        client, _ = listener.accept()
        client.recv(65536)
        client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        for _ in range(0, SIZE, 4000):
            client.sendall(bytes(4000))
            time.sleep(0.5)
        client.close()


def download_pretrained(url):
    with urllib.request.urlopen(url) as response:
        return response.read()


def main():
    options = stage.arguments()
    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", 0))
    stage.outsider(lambda: mirror(listener))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/resnet.bin"
    backbone = torch.nn.Conv2d(3, 32, 5)
    sgd = torch.optim.SGD(backbone.parameters(), lr=0.1)
    for step in range(10**6):
        if step == options.steps:
            stage.onset()
            print(len(download_pretrained(url)))
        sgd.zero_grad()
        backbone(torch.randn(8, 3, 32, 32)).mean().backward()
        sgd.step()


main()
