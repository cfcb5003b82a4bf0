"""Tests run on the CPU wherever they are run; those of the GPU ask for it by name."""

import os

os.environ["EOW_DEVICE"] = "cpu"
