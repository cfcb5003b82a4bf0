"""A finished classifier as a file for ONNX or torch.export.

run.py         of a run's folder: `eow export`
model.py       of an upgraded model or an EOWClassifier: eow.export_model
traceable.py   what they write: raw tensors in, answers out

`eow.deployed` runs such a file, without torch.
"""
