# What a login node is asked about its Slurm, after templates/sites/discover.sh: dlctl/scheduler/slurm_site.py reads the answers.
# dlctl prepends: given (the folder of Slurm's commands, or nothing).
# shellcheck shell=sh disable=SC2154
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
configuration() {
  limit 20 scontrol show config |
    sed -n -E '/^(ClusterName|MpiDefault) *=/p'
}
allocating_nodes() { # PARTITION|NODES from which its jobs may be submitted
  limit 20 scontrol --oneliner show partition | sed -n 's/^PartitionName=\([^ ]*\) .*AllocNodes=\([^ ]*\).*/\1|\2/p'
}

slurm=$(find_slurm)
ask slurm printf '%s\n' "$slurm"
case $slurm in
  *folder=*)
    PATH=$PATH:${slurm##*folder=}
    export PATH
    ask version limit 10 sinfo --version
    ask sinfo limit 20 sinfo --noheader --exact --format='%P|%a|%l|%s|%D|%c|%m|%G|%T'
    ask config configuration
    ask alloc_nodes allocating_nodes
    ask assoc limit 20 sacctmgr --noheader --parsable2 show assoc where user="$(id -un)" format=Account,Partition
    ask default_account limit 20 sacctmgr --noheader --parsable2 show user "$(id -un)" format=DefaultAccount
    ask accounting limit 20 sacct --noheader --allocations --starttime now --format=JobID
    ask mpi limit 10 srun --mpi=list
    ;;
esac
