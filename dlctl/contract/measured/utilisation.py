"""Names of what the collector measures beside a learner, in the metrics of the source `node`.

A line holds the mean over 10 s of samples that are 2 s apart, and as `<name>_max` the largest
sample. What a node can't tell is left out, and so is a rate that was 0 from the beginning.
"""

from __future__ import annotations

CPU_PERCENT = "cpu_percent"
"""Processor time of the learner's processes; 100 is one core."""
MEMORY_RSS_BYTES = "memory_rss_bytes"
"""Resident memory of the learner's processes together; what they share counts in each."""
PROCESSES = "processes"
"""How many processes the learner consists of."""
PAGE_FAULTS_PER_S = "page_faults_per_s"
"""Page faults, most of which cost no access to a disk."""
MAJOR_PAGE_FAULTS_PER_S = "major_page_faults_per_s"
"""Page faults that had to wait for a disk: memory that was swapped out, files that are mapped."""
READ_BYTES_PER_S = "read_bytes_per_s"
"""What the learner's processes read by system calls, also from the cache and from pipes."""
WRITE_BYTES_PER_S = "write_bytes_per_s"
"""What they write by system calls."""
DISK_READ_BYTES_PER_S = "disk_read_bytes_per_s"
"""What really came from a disk or a file server for them."""
DISK_WRITE_BYTES_PER_S = "disk_write_bytes_per_s"
"""What really goes to a disk or a file server for them."""
NETWORK_RECEIVE_BYTES_PER_S = "network_receive_bytes_per_s"
"""What the whole node receives over its network devices, without loopback."""
NETWORK_SEND_BYTES_PER_S = "network_send_bytes_per_s"
"""What the whole node sends."""
LOOPBACK_BYTES_PER_S = "loopback_bytes_per_s"
"""What processes of the node send one another over TCP."""
INFINIBAND_RECEIVE_BYTES_PER_S = "infiniband_receive_bytes_per_s"
"""What the whole node receives over InfiniBand, which the network devices don't count."""
INFINIBAND_SEND_BYTES_PER_S = "infiniband_send_bytes_per_s"
"""What the whole node sends over InfiniBand."""
CGROUP_MEMORY_BYTES = "cgroup_memory_bytes"
"""Memory of the job on the node as the kernel counts it, without files that it can drop."""
CGROUP_MEMORY_LIMIT_BYTES = "cgroup_memory_limit_bytes"
"""The kernel ends processes of the job that together take more; without a maximum of its own."""

GPU_PERCENT = "percent"
"""Share of the time in which at least one kernel ran on the GPU."""
GPU_MEMORY_BYTES = "memory_bytes"
"""Memory in use on the GPU, by all processes."""
GPU_MEMORY_TOTAL_BYTES = "memory_total_bytes"
"""Memory of the GPU; without a maximum."""
GPU_POWER_W = "power_w"
"""Power in watts."""
GPU_TEMPERATURE_C = "temperature_c"
"""Temperature in degrees Celsius."""
GPU_THROTTLED_PERCENT = "throttled_percent"
"""Share of the samples in which heat or power slowed the GPU down; without a maximum."""
GPU_THROTTLE_REASONS = "throttle_reasons"
"""A text: why it was slowed down."""
GPU_ECC_ERRORS = "ecc_errors"
"""Errors of the GPU's memory since the driver was loaded, those that were not corrected only."""
GPU_XID = "xid"
"""The driver's newest error number (Xid) of this GPU; only after an error, without a maximum."""

WITHOUT_MAXIMUM = frozenset({
    CGROUP_MEMORY_LIMIT_BYTES, GPU_MEMORY_TOTAL_BYTES, GPU_THROTTLED_PERCENT, GPU_ECC_ERRORS,
    GPU_XID,
})  # fmt: skip
"""Names without `<name>_max`; of a GPU without `gpu<i>_`."""


def maximum(name: str) -> str:
    """Return the name of the largest sample."""
    return f"{name}_max"


def gpu_name(index: int, name: str) -> str:
    """Return the name of a value of one GPU, as `gpu0_percent`.

    Args:
        index: the learner's number of it, from 0, as CUDA counts.
    """
    return f"gpu{index}_{name}"
