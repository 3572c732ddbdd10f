# What Slurm tells a job: its id, how often it was restarted, its number in an array, when it ends (Unix seconds).
# shellcheck disable=SC2034 # not each script needs all of it
job_id=${SLURM_JOB_ID:-${DLCTL_JOB_ID:-by-hand}} restarts=${SLURM_RESTART_COUNT:-0} number=${SLURM_ARRAY_TASK_ID:-} ends_at=${SLURM_JOB_END_TIME:-}
scheduler_ends_it() {
  [ -n "${SLURM_JOB_ID:-}" ] || return 1
  case $(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null) in '' | CONFIGURING | RUNNING) return 1 ;; esac
}
