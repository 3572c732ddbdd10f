"""A small Caffe: solver and net files become a model, an optimizer and data for the built-in loop.

Imports torch, h5py and `learner.errors`; `prototxt` and `solver` need neither torch nor h5py, so
that the preflight can check the files. What passes out is what a user's `build` would return
(`program.builder`), the solver's settings, and the blobs of a .caffemodel.

Layers, solvers and formats are those of BVLC Caffe 1.0 (Jia et al., Caffe: Convolutional
Architecture for Fast Feature Embedding, 2014; src/caffe/proto/caffe.proto).
"""
