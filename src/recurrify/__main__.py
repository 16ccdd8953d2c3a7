"""`python -m recurrify`: the commands."""

from recurrify.cli import main

if __name__ == "__main__":
    main()
