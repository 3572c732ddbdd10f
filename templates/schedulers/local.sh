# What dlctl's own queue tells a job.
# shellcheck disable=SC2034 # not each script needs all of it
job_id=${DLCTL_JOB_ID:-by-hand} restarts=0 number='' ends_at=''
scheduler_ends_it() { false; }
