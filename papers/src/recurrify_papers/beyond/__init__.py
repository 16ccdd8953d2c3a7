"""Experiments of ours that go beyond the papers."""
