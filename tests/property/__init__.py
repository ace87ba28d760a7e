"""Generated jobs against brute force."""
