"""What stages of pipelines wait for: their schedule, and stages with more work."""
