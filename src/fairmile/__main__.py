"""`python -m fairmile` is the command."""

from fairmile.cli.main import main

if __name__ == "__main__":
    main()
