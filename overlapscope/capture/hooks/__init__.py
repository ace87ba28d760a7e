"""Hooks inside torch: collectives, phases, gradients, the profiler and NVTX ranges."""
