"""What runs inside the training process: recording a step with little disturbance."""
