"""The search: a model, brokers, workers and a nameserver over RPC, on elastic jobs.

J. Hajewski, S. Oliveira: "A Scalable Architecture for Massively Parallel Deep Learning". The
processes share only the job directory, and connect by gRPC.
"""
