"""Loads the modules of Caffe's folder as the built-in loop does, under the package's name there."""

from repository import REPOSITORY

from learner.frameworks.pytorch import load_module

load_module(REPOSITORY / "templates/frameworks/caffe/program.py")
