"""Ways to make a training step: one file for each library."""
