"""Run one training step of real code on fake tensors, without a device, weights or a network, and record it."""
