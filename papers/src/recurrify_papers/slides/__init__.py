"""What the lecture slides claim, measured."""
