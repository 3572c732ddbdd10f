# What the questions about a login node's Slurm need, after templates/sites/discover.sh: dlctl/scheduler/slurm_answers.py
# has them, and reads the answers.
# dlctl prepends: given (the folder of Slurm's commands, or nothing).
# shellcheck shell=sh disable=SC2154,SC2329
# a user's own formats would change the answers
unset SINFO_FORMAT SINFO_PARTITION SINFO_SORT SINFO_ALL SLURM_CLUSTERS SLURM_TIME_FORMAT SACCT_FORMAT SQUEUE_FORMAT
PATH=${given:+$given:}$PATH
find_slurm() { # prints how it was found and the folder
  if found=$(command -v sinfo 2>/dev/null) && [ -x "$found" ]; then
    printf 'found=path\nfolder=%s\n' "${found%/*}"
    return 0
  fi
  IFS=:
  set -f
  # shellcheck disable=SC2046
  set -- $(login_path)
  set +f
  unset IFS
  for folder in "$@" /usr/bin /usr/local/bin /opt/slurm/bin /usr/local/slurm/bin /opt/slurm/current/bin \
    /opt/slurm/default/bin /cm/shared/apps/slurm/current/bin /usr/slurm/bin /cluster/slurm/bin \
    /opt/software/slurm/bin /sw/slurm/bin; do
    [ -x "$folder/sinfo" ] || continue
    printf 'found=folder\nfolder=%s\n' "$folder"
    return 0
  done
  found=$(start_modules && module load slurm >/dev/null 2>&1 && command -v sinfo) || return 1
  printf 'found=module\nfolder=%s\n' "${found%/*}"
}
allocating_nodes() { # PARTITION|NODES from which its jobs may be submitted
  limit 20 scontrol --oneliner show partition | sed -n 's/^PartitionName=\([^ ]*\) .*AllocNodes=\([^ ]*\).*/\1|\2/p'
}

slurm=$(find_slurm </dev/null)
case $slurm in *folder=*) PATH=$PATH:${slurm##*folder=} ;; esac
export PATH
