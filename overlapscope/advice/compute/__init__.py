"""Rules about what a device computes: kernels that could be fused, copies, sorts, and launches that wait for each."""
