"""Language models trained from scratch."""
