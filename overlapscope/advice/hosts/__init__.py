"""What hosts delay by themselves: slower ones, those that launch all the time, and launches that wait."""
