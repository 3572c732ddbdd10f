"""A checkpoint on disk, and the process that writes it: shares, marker, publication, pruning.

Imports numpy and h5py, and neither torch nor MPI: the writer process starts before both. It handles
bytes and their checksums.
"""
