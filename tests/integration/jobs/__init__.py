"""The jobs that tests of recording run: each module is one rank of a real training."""
