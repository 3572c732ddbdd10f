# Inspects a site: `dlctl sites add` and `dlctl sites check` run this, dlctl/site_admin/discovery.py reads the answer.
# POSIX sh; changes nothing on the site. Each answer is printed between `==dlctl== NAME` and `==dlctl== rc CODE`;
# what a command wrote to standard error is marked with `! `.
# shellcheck shell=sh
LC_ALL=C
export LC_ALL
# a user's own formats would change Slurm's answers
unset SINFO_FORMAT SINFO_PARTITION SINFO_SORT SINFO_ALL SLURM_CLUSTERS SLURM_TIME_FORMAT SACCT_FORMAT SQUEUE_FORMAT CDPATH
exec </dev/null

limit() { # SECONDS COMMAND...: a file system or a controller that hangs must not hold up the rest
  if command -v timeout >/dev/null 2>&1; then timeout "$@"; else shift; "$@"; fi
}
ask() { # NAME COMMAND...
  printf '==dlctl== %s\n' "$1"
  shift
  { { "$@"; printf '\n==dlctl== rc %s\n' "$?"; } 2>&1 1>&3 | sed 's/^/! /'; } 3>&1
}

account_facts() {
  printf 'home=%s\nuser=%s\nhost=%s\nshell=%s\nsystem=%s\n' \
    "$HOME" "$(id -un)" "$(uname -n)" "${SHELL:-}" "$(uname -sm)"
}
login_path() { # the PATH of a login shell, whatever shell it is (csh knows no `-lc`)
  [ -x "${SHELL:-}" ] || return 0
  printf 'exec env\n' | limit 10 "$SHELL" -l 2>/dev/null | sed -n 's/^PATH=//p' | tail -n 1
}
start_modules() { # define `module`, as a login shell does
  command -v module >/dev/null 2>&1 && return 0
  for init in "${MODULESHOME:-/nonexistent}/init/sh" /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
    /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh /usr/share/modules/init/sh; do
    # shellcheck disable=SC1090
    [ -r "$init" ] && . "$init" >/dev/null 2>&1 && command -v module >/dev/null 2>&1 && return 0
  done
  return 1
}
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
partitions() {
  limit 20 sinfo --noheader --exact --format='%P|%a|%l|%s|%D|%c|%m|%G|%T'
}
configuration() {
  limit 20 scontrol show config |
    sed -n -E '/^(ClusterName|SLURM_VERSION|MpiDefault|MaxArraySize|AccountingStorageType|SelectType|SelectTypeParameters|DefMemPerCPU|DefMemPerNode|MaxMemPerNode|EnforcePartLimits) *=/p'
}
allocating_nodes() { # PARTITION|NODES from which its jobs may be submitted
  limit 20 scontrol --oneliner show partition | sed -n 's/^PartitionName=\([^ ]*\) .*AllocNodes=\([^ ]*\).*/\1|\2/p'
}
associations() {
  limit 20 sacctmgr --noheader --parsable2 show assoc where user="$(id -un)" format=Account,Partition,QOS,DefaultQOS
}
default_account() {
  limit 20 sacctmgr --noheader --parsable2 show user "$(id -un)" format=DefaultAccount
}
accounting() {
  limit 20 sacct --noheader --allocations --starttime now --format=JobID >/dev/null
}
pythons() { # VERSION|PATH|PREFIX
  for folder in $(printf '%s' "$PATH:/usr/bin:/usr/local/bin" | tr ':' '\n' | awk 'NF && !seen[$0]++'); do
    for name in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
      [ -x "$folder/$name" ] || continue
      limit 10 "$folder/$name" -c 'import sys; print("%d.%d.%d|%s|%s" % (sys.version_info[:3] + (sys.executable, sys.prefix)))' 2>/dev/null
    done
  done | awk -F'|' '!seen[$1 "|" $3]++' # /bin/python3 and /usr/bin/python3.11 are one
}
modules() {
  start_modules || return 1
  printf 'kind=%s\n' "$(if [ -n "${LMOD_CMD:-}${LMOD_PKG:-}" ]; then echo Lmod; else echo 'Environment Modules'; fi)"
  for name in python openmpi cuda; do
    module -t avail "$name" 2>&1 | grep -v ':$' | head -n 30
  done
}
free_space() {
  limit 10 df -Pk "$HOME" | tail -n 1
}
quotas() {
  command -v quota >/dev/null 2>&1 || return 0
  limit 10 quota -w 2>/dev/null | head -n 20
}
mpirun_version() {
  found=$(command -v mpirun) || return 1
  printf '%s\n' "$found"
  limit 10 mpirun --version 2>&1 | head -n 1
}

ask account account_facts
slurm=$(find_slurm)
ask slurm printf '%s\n' "$slurm"
case $slurm in
  *folder=*)
    PATH=$PATH:${slurm##*folder=}
    export PATH
    ask version limit 10 sinfo --version
    ask sinfo partitions
    ask config configuration
    ask alloc_nodes allocating_nodes
    ask assoc associations
    ask default_account default_account
    ask accounting accounting
    ask mpi limit 10 srun --mpi=list
    ;;
esac
ask pythons pythons
ask modules modules
ask mpirun mpirun_version
ask df free_space
ask quota quotas
printf '==dlctl== end\n'
