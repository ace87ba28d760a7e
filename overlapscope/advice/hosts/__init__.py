"""What hosts delay by themselves: those that are slower than others, and those that launch all the time."""
