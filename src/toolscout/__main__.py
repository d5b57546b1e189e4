"""`python -m toolscout`."""

from toolscout.cli.main import main

if __name__ == "__main__":
    main()
