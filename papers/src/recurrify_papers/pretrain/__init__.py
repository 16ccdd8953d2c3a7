"""Base models pretrained from scratch."""
