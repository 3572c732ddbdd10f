"""The public name of `learner.data.hdf5`; see docs/run.md."""

from learner.data.hdf5 import Hdf5Dataset as Hdf5Dataset
