# What the made-up scheduler tells a job.
# shellcheck disable=SC2034 # not each script needs all of it
job_id=${TOY_JOBID:-by-hand} restarts=0 number='' ends_at=''
scheduler_ends_it() { false; }
