"""`OpenWorldLoss` in a LightningModule. Needs the package `lightning`; seconds on a CPU.

python examples/lightning_loop.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import eow


class Classifier(lightning.LightningModule):
    """Starts with cross-entropy; from `open_from` on, with the open world."""

    def __init__(self, model: nn.Module, open_from: int) -> None:
        super().__init__()
        self.loss = eow.OpenWorldLoss(eow.upgrade(model))  # it holds the model: one registration is enough
        self.open_from = open_from

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        if self.current_epoch < self.open_from:
            return nn.functional.cross_entropy(self.loss.model(x), y)
        loss = self.loss(x, y)
        self.log_dict(self.loss.last)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.loss.parameters(), 1e-3)


lightning.seed_everything(0, verbose=False)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
known = y < 8
loader = DataLoader(TensorDataset(x[known], y[known]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
classifier = Classifier(net, open_from=8)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
lightning.Trainer(max_epochs=13, accelerator="cpu", **quiet).fit(classifier, loader)

said, strange = (eow.predict(classifier.loss.model, each, unknown_rate=0.1) for each in (x[known], x[~known]))
print(f"accuracy on 0-7 (the digits it was trained on) {(said.probs.argmax(1) == y[known]).float().mean():.3f}")
print(f"mean unknown on 0-7 {said.unknown.mean():.3f}, on 8 and 9 {strange.unknown.mean():.3f}")
