"""DistributedDataParallel: its buckets, its step, what a recording says of them."""
