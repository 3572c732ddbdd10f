"""`dlctl`, and `python -m dlctl`: a door that a Ctrl-C may close while the command still loads."""

import sys


def main() -> None:
    """Run the command line; never returns."""
    try:
        from dlctl.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
