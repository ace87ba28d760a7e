"""What is read beside torch: device and network counters, host pauses, the software environment."""
