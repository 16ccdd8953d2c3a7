"""Compiled windows, CUDA graphs and fused losses: switching them off changes no result."""
