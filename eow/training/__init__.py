"""The training: of one method on one data set.

loop.py         the only training loop              branching.py    trainings with a common beginning
stepgraph.py    its step as one CUDA graph          checkpoints.py  where it stands, on disk
stopping.py     Ctrl-C, SIGTERM and SIGHUP          loggers.py      its epochs as CSV or for TensorBoard
launching.py    one process a device (torchrun)     distributed.py  a process's place among the others

Nothing is imported here, so that a signal can be waited for before torch is.
"""
