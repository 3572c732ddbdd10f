#!/bin/bash
# cluster.sh - a real Slurm cluster with several nodes on one machine: no container engine, no systemd.
#
#   cluster.sh up          start it; a daemon or node that is missing is started again
#   cluster.sh down        stop it; job ids and the accounting continue next time
#   cluster.sh wipe        stop it at once and delete its folder
#   cluster.sh status      what runs; exit code 0 only if every node is usable
#   cluster.sh exec [-n N] COMMAND...   as the cluster's administrator, on the login host (or node N)
#   cluster.sh user [-n N] COMMAND...   as the cluster's ordinary user
#   cluster.sh node-kill N | node-start N       power off, nobody tells slurmctld | power on
#   cluster.sh node-cut N | node-heal N         unplug | replug its network
#   cluster.sh ctld-kill | ctld-stop | ctld-start | ctld-hang | ctld-resume
#   cluster.sh dbd-stop | dbd-start
#   cluster.sh ssh-hang | ssh-resume | ssh-drop   no answer to new connections | ... | cut all open ones
#
# Settings, from the environment at `up` (one that is up keeps its own):
#   CLUSTER          its folder; short, because a path of a Unix socket has at most 107 bytes
#   CLUSTER_NODES, CLUSTER_CPUS, CLUSTER_MEMORY_MB, CLUSTER_GPUS   nodes, and what each of them has
#   CLUSTER_SSH_PORT   0 (the default): a free one, see ssh_config in the folder
#   CLUSTER_VENV     a virtual environment, seen read-only as $CLUSTER/venv in there
#   CLUSTER_HIDE     a folder that is empty in there (the clone: nothing may lean on it by accident)
#   CLUSTER_CGROUPS  yes: Slurm tracks and limits jobs by cgroups, as sites have it; needs root and cgroups of version 1
#   CLUSTER_SLURM_EXTRA   lines added to slurm.conf
#   CLUSTER_OWNER_FD a pipe's reading end: when it is closed, the cluster and its folder go
#
# How it works stands in README.md beside this file.
set -u
export CLUSTER=${CLUSTER:-/var/tmp/dlctl-cluster.$(id -un)}
B=$CLUSTER E=$CLUSTER/etc R=$CLUSTER/run L=$CLUSTER/log
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export PATH=$PATH:/usr/sbin:/sbin
# shellcheck source=tests/cluster/bin/common.sh
. "$HERE/bin/common.sh"
# shellcheck source=tests/cluster/bin/configure.sh
. "$HERE/bin/configure.sh"
# shellcheck source=tests/cluster/bin/inside.sh
. "$HERE/bin/inside.sh"
CGROUP=dlctl-$(printf %s "$B" | tr -c 'A-Za-z0-9.\n' -) CGROUPS="cpuset cpuacct freezer memory"
SELF=$B/program/cluster.sh   # a copy: the clone may be hidden in there, and may change meanwhile

nodes_ok() {
  [ "$(in_head "$SELF" __svc timeout 5 sinfo -h -N -p debug -t idle,alloc,mix,comp -o %N 2>/dev/null | sort -u | wc -l)" = "$CLUSTER_NODES" ]
}

check_programs() {
  local program
  for program in slurmctld slurmd slurmdbd munged mariadbd sshd ssh-keygen unshare nsenter ip setpriv pgrep; do
    command -v "$program" >/dev/null || die "$program is missing: run \`make cluster-deps\`"
  done
}

install_program() { # the folder's own copy; whole or absent, because a running bash reads its script piecemeal
  rm -rf "$B/program.new"
  mkdir -p "$B/program.new/bin"
  cp "$HERE/cluster.sh" "$B/program.new/" && cp "$HERE"/bin/* "$B/program.new/bin/"
  chmod 755 "$B/program.new/cluster.sh"
  rm -rf "$B/program" && mv "$B/program.new" "$B/program"
}

boot() {
  local keeper child_pid
  configure
  rm -f "$R/booted" "$R"/*.pid "$R/ssh_port"
  # env -i: what the daemons and so the jobs see must not depend on who starts the cluster
  setsid env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    HOME=/ CLUSTER="$B" DLCTL_TEST_SESSION="${DLCTL_TEST_SESSION:-}" \
    "$PYTHON" "$B/program/bin/keeper.py" "$B" "$CLUSTER_SSH_PORT" "${CLUSTER_OWNER_FD:--1}" \
    </dev/null >"$L/keeper.out" 2>&1 8>&- &
  keeper=$!
  until_ok 10 head_of "$keeper" || die "no namespaces: $(cat "$L/keeper.out")"
  child_pid=$(head_of "$keeper")
  record "$child_pid" "$R/head.pid"
  until_ok 90 test -e "$R/booted" || die "the login host did not boot: see $L"
  configure_client
}

head_of() { # keeper -> unshare -> the login host's init
  local unshare_pid
  unshare_pid=$( pgrep -P "$1" -x unshare) && child_of "$unshare_pid"
}

up() {
  local started=$SECONDS
  check_programs
  mkdir -p "$B" || die "cannot write $B"
  : >"$B/.dlctl-cluster"
  exec 8>"$B/.lock"
  flock 8
  if head_pid >/dev/null; then
    in_head "$SELF" __services 8>&-
  else
    install_program
    boot
  fi
  until_ok 60 nodes_ok || die "not every node answers: $(in_head "$SELF" __svc timeout 5 sinfo -N -o '%N %T %E' 2>&1); see $L"
  echo "up in $((SECONDS - started)) s: $CLUSTER_NODES nodes; ssh -F $B/ssh_config testbed"
}

down() {
  local pid
  [ -d "$B" ] || { echo "not up"; return 0; }
  exec 8>"$B/.lock"
  flock 8
  pid=$(head_pid) || { echo "not up"; return 0; }
  in_head "$SELF" __svc timeout 5 sh -c 'squeue -h -r -o %A | xargs -r scancel' >/dev/null 2>&1
  kill -TERM "$pid" 2>/dev/null
  until_ok 25 head_gone || kill_head "$pid"
  rm -f "$R/head.pid" "$R/booted"
  echo down
}

kill_head() { kill -KILL "$1" 2>/dev/null; until_ok 10 head_gone; }

wipe() {
  local pid
  [ -e "$B" ] || return 0
  [ -e "$B/.dlctl-cluster" ] || die "will not delete $B: it holds no cluster"
  if pid=$(head_pid); then kill_head "$pid" || die "process $pid does not end"; fi
  remove_cgroups
  until_ok 10 rm -rf --one-file-system "$B" || die "cannot delete $B"
}

remove_cgroups() {
  local kind
  for kind in $CGROUPS; do
    [ ! -d "/sys/fs/cgroup/$kind/$CGROUP" ] ||
      until_ok 5 find "/sys/fs/cgroup/$kind/$CGROUP" -depth -type d -exec rmdir '{}' ';'
  done
}

status() {
  head_pid >/dev/null || { echo "not up"; return 1; }
  echo "login host: pid $(head_pid), ssh 127.0.0.1:$(cat "$R/ssh_port") as $TUSER"
  in_head "$SELF" __svc scontrol ping
  in_head "$SELF" __svc sinfo -N -o '%N %T %G %E'
  nodes_ok
}

run_as() { # ROLE [-n N] COMMAND...
  local role=$1 node=
  shift
  if [ "${1:-}" = -n ]; then node=$2; shift 2; fi
  if [ -n "$node" ]; then
    in_head "$SELF" __in_node "$node" "$SELF" "__$role" "$@"
  else
    in_head "$SELF" "__$role" "$@"
  fi
}

command=${1:-}
[ $# -gt 0 ] && shift
unset SLURM_CONF
settings
case $command in
  up | down | wipe | status) "$command" ;;
  exec) run_as svc "$@" ;;
  user) run_as user "$@" ;;
  node-kill) in_head "$SELF" __node_kill "$1" ;;
  node-start) in_head "$SELF" __node_start "$1" ;;
  node-cut) in_head ip link set "veth$1" down ;;
  node-heal) in_head ip link set "veth$1" up ;;
  ctld-kill) in_head "$SELF" __signal slurmctld KILL ;;
  ctld-stop) in_head "$SELF" __signal slurmctld TERM ;;
  ctld-start) in_head "$SELF" __start_ctld ;;
  ctld-hang) in_head "$SELF" __signal slurmctld STOP ;;
  ctld-resume) in_head "$SELF" __signal slurmctld CONT ;;
  dbd-stop) in_head "$SELF" __signal slurmdbd TERM ;;
  dbd-start) in_head "$SELF" __start_dbd ;;
  ssh-hang) in_head kill -STOP "$(cat "$R/accept.pid")" ;;
  ssh-resume) in_head kill -CONT "$(cat "$R/accept.pid")" ;;
  ssh-drop) in_head pkill -KILL -x sshd || true ;;   # in the cluster's PID namespace: it sees only the cluster's own
  __head) head_init ;;
  __node) node_init "$1" ;;
  __svc) svc "$@" ;;
  __user) as_user "$@" ;;
  __services) head_services ;;
  __in_node) node=$1; shift; in_node "$node" "$@" ;;
  __node_kill) node_kill "$1" ;;
  __node_start) start_node "$1" ;;
  __signal) signal_daemon "$1" "$2" ;;
  __start_ctld) start_ctld ;;
  __start_dbd) start_dbd ;;
  *)
    sed -n '2,/^set -u/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    [ -z "$command" ] || exit 2
    ;;
esac
