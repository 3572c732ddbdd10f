"""The collector beside each learner: parsed logs and utilisation, as lines of metrics.

A program of its own, which the watchdog starts and ends, so that nothing that it does wrong can
end or delay a training. Imports `learner.job`, `learner.system` and the contract, and never torch,
numpy or MPI. It handles the learner's log, files in LOG_DIR, /proc and NVML; lines of metrics leave
it.
"""
