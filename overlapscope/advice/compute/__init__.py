"""Rules about what a device computes: kernels that could be fused, copies, sorts, and what is computed twice."""
