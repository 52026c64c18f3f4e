"""FIELD
source: https://github.com/voxel51/eta/issues/647 and https://github.com/Zulko/moviepy/issues/576
mechanism: the decoder process writes one warning per frame to a stderr pipe that nobody reads; the pipe fills, the decoder stops, and the trainer waits for the next frame on its stdout
needs: cpu
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: read_clip (clip_reader.py)
twin: none
"""
import subprocess, sys, time
import numpy as np
import torch, torch.nn as nn

torch.set_num_threads(1)
SIDE, FRAMES = 48, 240
FRAME_BYTES = SIDE * SIDE * 3

DECODER = r'''
import os, sys
frames, side, vfr, seed = map(int, sys.argv[1:])
out, err = sys.stdout.buffer, sys.stderr
block = bytes((i * seed) % 251 for i in range(side * side * 3))
for pts in range(frames):
    if vfr:
        err.write("[image2pipe @ 0x5bf4845fdf40] Application provided invalid, non monotonically increasing dts to muxer in stream 0: %d >= %d\n" % (pts, pts))
        err.write("[rawvideo @ 0x5bf4845fe1c0] Estimating duration from bitrate, this may be inaccurate; frame %d is kept as it is\n" % pts)
        err.write("[swscaler @ 0x5bf484601240] deprecated pixel format used, make sure you did set range correctly (frame %d)\n" % pts)
        err.flush()
    out.write(block)
out.flush()
'''

def read_clip(index, vfr):
    args = [sys.executable, '-S', '-E', '-c', DECODER, str(FRAMES), str(SIDE), str(int(vfr)), str(index % 89 + 1)]
    proc = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    clip = np.empty((FRAMES, SIDE, SIDE, 3), dtype=np.uint8)
    for f in range(FRAMES):
        raw = proc.stdout.read(FRAME_BYTES)
        clip[f] = np.frombuffer(raw, dtype=np.uint8).reshape(SIDE, SIDE, 3)
    proc.stdout.close(); proc.stderr.close(); proc.wait()
    return torch.from_numpy(clip).float().div_(255)

class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(32, 12)
    def forward(self, clip):
        return self.head(self.body(clip.permute(0, 3, 1, 2)).mean(0, keepdim=True))

def main():
    model = ClipNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    begun, phone = time.time(), False
    for index in range(100_000):
        if not phone and time.time() - begun > 9:       # the studio recordings come first, then those from phones
            phone = True
            print('ONSET', flush=True)
        clip = read_clip(index, vfr=phone)
        loss = nn.functional.cross_entropy(model(clip[::4]), torch.tensor([index % 12]))
        opt.zero_grad(); loss.backward(); opt.step()
        if index % 10 == 0:
            print(f'clip {index} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
