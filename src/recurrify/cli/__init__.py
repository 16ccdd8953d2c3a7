"""The commands that are more than a few lines, one file each.

They import what they run when they run, as cli.py does; `evaluating` and `generating` are imported only then.
"""
