"""The training thread reports its loss to a tracking server that accepts the request and never answers."""

import http.client
import socket
import threading
import time

import stage
import torch


class Tracker:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def log(self, step, loss):
        self.connection.request("GET", f"/api/runs/7/log?step={step}&loss={loss}")
        self.connection.getresponse().read()


def tracking_server(listener, answers):
    peer, _ = listener.accept()
    for _ in range(answers):
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    threading.Event().wait()


def heart():
    while True:
        time.sleep(0.5)
        print("heart", flush=True)


if __name__ == "__main__":
    options = stage.arguments()
    torch.set_num_threads(1)
    server = socket.create_server(("127.0.0.1", 0))
    stage.outsider(lambda: tracking_server(server, answers=options.steps))
    tracker = Tracker(server.getsockname()[1])
    server.close()
    if options.strength == "masked":
        threading.Thread(target=heart, daemon=True).start()
    lstm = torch.nn.LSTM(32, 64)
    optimizer = torch.optim.Adam(lstm.parameters())
    for step in range(10**7):
        loss = lstm(torch.randn(30, 16, 32))[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == options.steps:
            stage.onset()
        tracker.log(step, loss.item())
