"""What `eow.estimator.EOWClassifier` is made of.

rows.py        standardised rows, and the fence around them
training.py    the network's training, stopped early or not
rehearsal.py   how sure it may be, measured on rows that another network was not trained on
"""
