"""`dlctl`, and `python -m dlctl`: a door that a Ctrl-C may close while the command still loads."""

import signal
import sys


def main() -> None:
    """Run the command line; never returns."""
    try:
        from dlctl.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        run()
    finally:  # all is done: Ctrl-C in Python's own end would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
