"""What ranks lose on their own: idle time of hosts, copies, the largest loss, and what a replay without it gains."""
