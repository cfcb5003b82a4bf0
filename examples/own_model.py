"""Your own classifier learns to say "I don't know": digits 0-7 are known, 8 and 9 never shown. Seconds on a CPU.

python examples/own_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import eow

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
y = torch.tensor(digits.target)
known = y < 8
train = torch.arange(len(y)) % 3 > 0
loader = DataLoader(TensorDataset(x[known & train], y[known & train]), batch_size=64, shuffle=True)

# An ordinary model with ordinary training.
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(10):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
model.eval()
test_x, test_y = x[known & ~train], y[known & ~train]
before = (model(test_x).argmax(1) == test_y).float().mean()

# The three lines.
upgraded = eow.upgrade(model)
eow.fit(upgraded, loader, epochs=5)
said, strange = (eow.predict(upgraded, each, unknown_rate=0.1) for each in (test_x, x[~known]))  # one in ten

after = (said.probs.argmax(1) == test_y).float().mean()
print(f"accuracy on 0-7 before {before:.3f}, after {after:.3f}")
print(f"mean unknown on 0-7 {said.unknown.mean():.3f}, on 8 and 9 {strange.unknown.mean():.3f}")
share = [(each.label == -1).float().mean() for each in (said, strange)]
print(f"answered unknown on 0-7 {share[0]:.3f}, on 8 and 9 {share[1]:.3f}")
