"""Record training steps inside the training process, with little disturbance."""
