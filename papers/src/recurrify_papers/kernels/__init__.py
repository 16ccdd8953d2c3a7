"""Triton kernels of the models from scratch."""
