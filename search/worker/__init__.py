"""A worker: takes tasks from brokers, runs each in a slot, and brings the results back.

`slots` runs tasks and knows no broker; `links` talk to brokers. Results are in the
outbox, a file, before they are sent.
"""
