"""`python -m learner.export`: see `learner.export.job`."""

import sys

from dlctl.contract.programs.answers import run
from learner.export.job import main

if __name__ == "__main__":
    sys.exit(run(main))
