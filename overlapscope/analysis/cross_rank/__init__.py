"""The same call on all ranks: matching, clocks, waiting split from transferring."""
