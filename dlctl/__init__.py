"""dlctl: deep learning as a service on any Slurm cluster, driven from a laptop.

This file travels to the nodes with `dlctl.contract`: it must import nothing.
"""

__version__ = "0.1.0"
