"""What links between ranks reach: slow ones, messages, and what other machines reach."""
