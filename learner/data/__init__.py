"""Brings samples to a learner: their order, prefetching, HDF5 files, chunks of the cursor.

Imports torch, h5py and `psrv.cursor`. What passes through are indices on the way in and batches on
the way out.
"""
