"""OverlapScope: exact communication-compute overlap of distributed training."""
