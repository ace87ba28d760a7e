"""What watches the training process inside torch."""
