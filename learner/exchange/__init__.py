"""How learners agree: one Protocol, so far one MPI allreduce that sums in rank order."""
