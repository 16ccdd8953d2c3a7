"""`python -m recurrify`: the commands."""

from recurrify.cli.main import main

if __name__ == "__main__":
    main()
