"""The public name of `learner.data.chunk_loader`; see docs/cursor.md."""

from learner.data.chunk_loader import ChunkLoader as ChunkLoader
