"""The site file of a test cluster, for the tests and for a cluster that is started by hand."""

CLUSTER_SITE = """\
transport:
  kind: ssh
  host: {host}
root: {root}
scheduler:
  kind: slurm
partitions:
  debug: {{nodes: 4, cpus_per_node: 2, memory_per_node: 4000MiB, gpus_per_node: 2, default: true}}
  short:
    {{nodes: 1, cpus_per_node: 2, memory_per_node: 4000MiB, gpus_per_node: 2, max_time: 2m}}
launcher:
  kind: srun
  mpi: pmix
environment:
  python: {python}
  variables:
    OMPI_MCA_mpi_yield_when_idle: "1"
"""
