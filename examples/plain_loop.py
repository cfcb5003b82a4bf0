"""`OpenWorldLoss` in a plain PyTorch loop, with autocast and accumulated gradients. Seconds on a CPU.

python examples/plain_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import eow

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
known = y < 8
loader = DataLoader(TensorDataset(x[known], y[known]), batch_size=32, shuffle=True)

# A model to start from: cross-entropy first, as always. Here both phases are short.
plain = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(plain.parameters(), 1e-3)
for _ in range(8):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(inputs), labels).backward()
        optimizer.step()

model = eow.upgrade(plain)
loss_of = eow.OpenWorldLoss(model)  # with several GPUs: DistributedDataParallel(eow.OpenWorldLoss(model))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
model.train()
for epoch in range(5):
    for step, (inputs, labels) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(inputs, labels)  # with real outliers: loss_of(inputs, labels, unknown=outliers)
        (loss / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, {name: round(float(term), 3) for name, term in loss_of.last.items()})

said, strange = (eow.predict(model, each, unknown_rate=0.1) for each in (x[known], x[~known]))  # one in ten is expected
print(f"accuracy on 0-7 (the digits it was trained on) {(said.probs.argmax(1) == y[known]).float().mean():.3f}")
print(f"mean unknown on 0-7 {said.unknown.mean():.3f}, on 8 and 9 {strange.unknown.mean():.3f}")
