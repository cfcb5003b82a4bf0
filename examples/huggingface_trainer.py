"""`OpenWorldLoss` in Hugging Face's Trainer, around a small vision transformer. Needs the packages `transformers` and
`accelerate`; nothing is downloaded. A minute on a CPU.

python examples/huggingface_trainer.py
"""

import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import eow


class OpenWorldTrainer(Trainer):
    """Trains an upgraded model: the loss is ours, all else is the Trainer's."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.open_world_loss = eow.OpenWorldLoss(model)  # type: ignore[arg-type]

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return self.open_world_loss(inputs["pixel_values"], inputs["labels"])


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    known = y < 8
    rows = [{"pixel_values": image, "labels": label} for image, label in zip(x[known], y[known])]
    net = ViTForImageClassification(
        ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            image_size=8, patch_size=2, num_channels=1, num_labels=8,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, num_train_epochs=6, per_device_train_batch_size=32, learning_rate=2e-3, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        Trainer(net, settings, train_dataset=rows).train()  # cross-entropy first, as always
        model = eow.upgrade(net, example=x[:1], trace=False)  # the `logits` of what it returns
        OpenWorldTrainer(model, args=settings, train_dataset=rows).train()
    said, strange = (eow.predict(model, each, unknown_rate=0.1) for each in (x[known], x[~known]))
    print(f"accuracy on 0-7 (the digits it was trained on) {(said.probs.argmax(1) == y[known]).float().mean():.3f}")
    print(f"mean unknown on 0-7 {said.unknown.mean():.3f}, on 8 and 9 {strange.unknown.mean():.3f}")


if __name__ == "__main__":
    main()
