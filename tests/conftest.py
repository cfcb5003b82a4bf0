"""Tests run on the CPU wherever they are run (those of the GPU ask for it by name), and with one thread: their networks
are small, and threads that wait for one another are slow on a busy machine."""

import os

os.environ["EOW_DEVICE"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
