"""The public name of `psrv.solvers.solver`: the solvers, and the base of a user's own."""

from psrv.solvers.solver import DiLoCo as DiLoCo
from psrv.solvers.solver import Downpour as Downpour
from psrv.solvers.solver import DownpourAdagrad as DownpourAdagrad
from psrv.solvers.solver import ElasticAveraging as ElasticAveraging
from psrv.solvers.solver import ModelAveraging as ModelAveraging
from psrv.solvers.solver import ParallelSGD as ParallelSGD
from psrv.solvers.solver import RoundSolver as RoundSolver
from psrv.solvers.solver import Solver as Solver
