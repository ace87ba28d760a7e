"""Findings from what programs logged: NCCL, Horovod, timers of frameworks."""
