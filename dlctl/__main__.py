"""`python -m dlctl` is `dlctl`."""

from dlctl.cli.main import main

if __name__ == "__main__":
    main()
