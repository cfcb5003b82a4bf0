"""A model and a loop of your own. What `eow.upgrade` made is trained and asked here.

fit.py      eow.fit: the training loop on your data     batches.py   what your data is, as batches on the device
loss.py     eow.OpenWorldLoss: the loss for your loop   predict.py   eow.predict: label, confidence, unknown
"""
