"""The research that recurrify stands on, reproduced with recurrify's public functions."""
