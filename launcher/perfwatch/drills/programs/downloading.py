"""The pretrained weights are being downloaded, slowly but steadily, before the first step."""

import http.server
import shutil
import tempfile
import time
import urllib.request

import stage
import torch


class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(8 << 30))
        self.end_headers()
        while True:
            self.wfile.write(bytes(64 << 10))
            time.sleep(0.05)

    def log_message(self, *_):
        pass


def fetch_weights(url, target):
    with urllib.request.urlopen(url, timeout=60) as response:
        shutil.copyfileobj(response, target, length=256 << 10)


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    mirror = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    stage.outsider(mirror.serve_forever)
    mirror.socket.close()
    torch.set_num_threads(1)
    stage.onset()
    with tempfile.TemporaryFile(dir="/var/tmp") as weights:
        fetch_weights(f"http://127.0.0.1:{mirror.server_address[1]}/model.safetensors", weights)
        weights.seek(0)
        model = torch.nn.Linear(512, 512)
        model.load_state_dict(torch.load(weights))
