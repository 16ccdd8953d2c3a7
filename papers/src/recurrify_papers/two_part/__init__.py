"""A task that only a memory can solve."""
