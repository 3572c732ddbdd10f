"""`python -m learner.export`: see `learner.export.job`."""

import sys

from learner.export.job import main
from learner.job.answers import run

if __name__ == "__main__":
    sys.exit(run(main))
