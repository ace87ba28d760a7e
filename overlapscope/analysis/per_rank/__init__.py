"""One rank alone: its steps, the parts of a window, its kernels."""
