"""The clocks of ranks: how far apart they are, when they were set, and which ranks share one."""
