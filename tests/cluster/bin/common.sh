# shellcheck shell=bash
# What every part of cluster.sh uses: settings, and processes that are surely ours.
# B, E, R, L: the cluster's folder and its etc, run and log; set in cluster.sh.
# shellcheck disable=SC2034,SC2153,SC2154

NET=10.77.0                       # inside the namespaces only: several clusters do not meet
USER_ID=20001                     # of dluser, who exists only in there
NAMESPACES=(--fork --pid --mount --uts --ipc --net --kill-child)
PYTHON=/usr/bin/python3           # not a pyenv shim: that is a shell script with children of its own
[ -x "$PYTHON" ] || PYTHON=python3

die() { echo "cluster.sh: $*" >&2; exit 1; }

settings() {
  if [ -e "$E/settings" ] && { [ -n "${CLUSTER_INSIDE:-}" ] || [ "$command" = __head ] || alive "$R/head.pid"; }; then
    # shellcheck disable=SC1091
    . "$E/settings"
  fi
  CLUSTER_NODES=${CLUSTER_NODES:-4} CLUSTER_CPUS=${CLUSTER_CPUS:-2} CLUSTER_GPUS=${CLUSTER_GPUS:-2}
  CLUSTER_MEMORY_MB=${CLUSTER_MEMORY_MB:-4000} CLUSTER_SSH_PORT=${CLUSTER_SSH_PORT:-0}
  CLUSTER_VENV=${CLUSTER_VENV:-} CLUSTER_HIDE=${CLUSTER_HIDE:-} CLUSTER_SLURM_EXTRA=${CLUSTER_SLURM_EXTRA:-}
  CLUSTER_CGROUPS=${CLUSTER_CGROUPS:-no}
  CLUSTER_UID=${CLUSTER_UID:-$(id -u)} CLUSTER_GID=${CLUSTER_GID:-$(id -g)}
  CLUSTER_LOGIN=${CLUSTER_LOGIN:-$(id -un "$CLUSTER_UID")}   # asked outside: in a user namespace everybody is root
  if is_root; then TUSER=dluser; else TUSER=$CLUSTER_LOGIN; fi
  THOME=$B/home/$TUSER
}

save_settings() {
  local name
  for name in NODES CPUS MEMORY_MB GPUS CGROUPS SSH_PORT VENV HIDE UID GID LOGIN; do
    name=CLUSTER_$name
    printf '%s=%q\n' "$name" "${!name}"
  done >"$E/settings"
}

is_root() { [ "$CLUSTER_UID" = 0 ]; }

started_at() { # PID: its start time in clock ticks; fails for a zombie. A PID alone may be another process by now
  local fields
  fields=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 1
  # shellcheck disable=SC2086
  set -- $fields
  [ "${1:-Z}" != Z ] && echo "${20}"
}
record() { echo "$1 $(started_at "$1")" >"$2"; }
alive() { # FILE with "PID START-TIME"
  local pid start
  read -r pid start 2>/dev/null <"$1" && [ "$(started_at "$pid")" = "$start" ]
}
head_pid() { alive "$R/head.pid" && cut -d' ' -f1 "$R/head.pid"; }
head_gone() { ! alive "$R/head.pid"; }
child_of() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = unshare ] && pgrep -P "$1"; }

until_ok() { # SECONDS COMMAND...
  local deadline=$((SECONDS + $1))
  shift
  while ! "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep .05
  done
}

in_head() { # run a command in the login host's namespaces
  local pid
  pid=$(head_pid) || die "the cluster is not up"
  if is_root; then
    nsenter -t "$pid" -m -u -i -n -p -- env CLUSTER_INSIDE=1 "$@"
  else
    nsenter -t "$pid" -U --preserve-credentials -m -u -i -n -p -- env CLUSTER_INSIDE=1 "$@"
  fi
}

# Daemons and users run in a further user namespace that maps the caller to himself again (not root only).
svc() {
  if is_root; then "$@"; else unshare -U --map-user="$CLUSTER_UID" --map-group="$CLUSTER_GID" -- "$@"; fi
}
as_user() {
  local prefix=()
  cd "$THOME" || return 1
  is_root && prefix=(setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups)
  svc "${prefix[@]}" env -i PATH="$PATH" LANG=C.UTF-8 HOME="$THOME" USER="$TUSER" LOGNAME="$TUSER" SHELL=/bin/bash "$@"
}
