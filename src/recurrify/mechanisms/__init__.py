"""The memories, one file each."""
