"""Primitives that all packages share: files, processes, text. They import nothing but each other.

Standard library only. What knows the job directory, a plan or a program stands above this room.
"""
