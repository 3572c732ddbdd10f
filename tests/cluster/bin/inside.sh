# shellcheck shell=bash
# What runs inside the namespaces: the login host's init and daemons, the nodes' inits.
# shellcheck disable=SC2154

daemon_pid() { # NAME PROGRAM: the pid, if it lives and is that program
  local pid
  pid=$(cat "$R/$1.pid" 2>/dev/null) && [ -n "$pid" ] &&
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && started_at "$pid" >/dev/null && echo "$pid"
}
daemon_gone() { ! daemon_pid "$1" "$2"; }
listens() { (exec 9<>"/dev/tcp/$1/$2") 2>/dev/null; }
signal_daemon() { # PROGRAM SIGNAL
  local pid
  pid=$(daemon_pid "$1" "$1") && kill "-$2" "$pid" || return 1
  case $2 in KILL | TERM) until_ok 20 daemon_gone "$1" "$1" ;; esac
}

start_ctld() {
  daemon_pid slurmctld slurmctld >/dev/null || svc slurmctld </dev/null >"$L/slurmctld.out" 2>&1 3<&-
  until_ok 30 listens head 6817
}
start_dbd() {
  daemon_pid slurmdbd slurmdbd >/dev/null || svc slurmdbd </dev/null >"$L/slurmdbd.out" 2>&1 3<&-
  until_ok 30 listens head 6819
}
start_munge() { # --force: in a user namespace / seems not to be root's
  daemon_pid munged munged >/dev/null ||
    svc munged --force --key-file="$E/munge.key" --socket="$B/munge/munge.sock" --pid-file="$R/munged.pid" \
      --log-file="$L/munged.log" --seed-file="$R/munged.seed" --num-threads=4 </dev/null >"$L/munged.out" 2>&1 3<&-
}
start_mariadb() {
  ! daemon_pid mysqld mariadbd >/dev/null || return 0
  [ -d "$B/db/mysql" ] ||
    svc mariadb-install-db --defaults-file="$E/my.cnf" --skip-test-db --auth-root-authentication-method=normal >"$L/install-db.log" 2>&1 3<&-
  svc setsid mariadbd --defaults-file="$E/my.cnf" </dev/null >/dev/null 2>&1 3<&- &
  until_ok 30 mariadb-admin --no-defaults -S "$R/mysqld.sock" -u root ping
  [ -d "$B/db/slurm_acct" ] ||
    mariadb --no-defaults -S "$R/mysqld.sock" -u root -e "create database slurm_acct;
      create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1'"
}
start_node() { # NUMBER
  local number=$1 unshare_pid init
  ! alive "$R/node-n$number.pid" || return 0
  ip link del "veth$number" 2>/dev/null
  setsid unshare "${NAMESPACES[@]}" -- "$SELF" __node "$number" </dev/null >"$L/node-n$number.out" 2>&1 3<&- &
  unshare_pid=$!
  until_ok 5 child_of "$unshare_pid" || return 1
  init=$(child_of "$unshare_pid")
  ip link add "veth$number" type veth peer name eth0 netns "$init" && ip link set "veth$number" master br0 up || return 1
  record "$init" "$R/node-n$number.pid"
}
node_pid() { alive "$R/node-n$1.pid" && cut -d' ' -f1 "$R/node-n$1.pid"; }
node_kill() {
  local pid
  pid=$(node_pid "$1") || return 1
  kill -KILL "$pid"
  until_ok 10 node_gone "$1"
}
node_gone() { ! alive "$R/node-n$1.pid"; }
in_node() { # NUMBER COMMAND...
  local pid
  pid=$(node_pid "$1") || die "node n$1 is not up"
  shift
  nsenter -t "$pid" -m -u -i -n -p -- "$@"
}

head_services() {
  local i
  start_munge
  start_mariadb
  start_dbd
  start_ctld
  for i in $(seq "$CLUSTER_NODES"); do start_node "$i"; done
  [ -e "$B/state/.accounts" ] || {
    svc sacctmgr -i add cluster testbed
    svc sacctmgr -i add account dl Description=dl Organization=testbed
    svc sacctmgr -i add user "$TUSER" Account=dl && : >"$B/state/.accounts"
  } >>"$L/sacctmgr.log" 2>&1
}
head_stop() {
  local pid name
  for name in slurmctld:slurmctld slurmdbd:slurmdbd mysqld:mariadbd; do
    pid=$(daemon_pid "${name%:*}" "${name#*:}") || continue
    kill "$pid"
    until_ok 15 daemon_gone "${name%:*}" "${name#*:}"
  done
  exit 0
}
bind_read_only() { # FROM TO; a read-only remount may be forbidden in a user namespace
  mount --bind "$1" "$2" && { mount -o remount,bind,ro "$2" 2>/dev/null || ! is_root; }
}
own_cgroups() { # what is the root in here is a group of its own outside: other clusters have theirs
  local kind folder
  for kind in $CGROUPS; do
    folder=/sys/fs/cgroup/$kind
    mkdir -p "$folder/$CGROUP" || return 1
    if [ "$kind" = cpuset ]; then
      cat "$folder/cpuset.cpus" >"$folder/$CGROUP/cpuset.cpus"
      cat "$folder/cpuset.mems" >"$folder/$CGROUP/cpuset.mems"
    fi
    mount --bind "$folder/$CGROUP" "$folder" || return 1
  done
}
head_init() { # pid 1 of the cluster; fd 3 is the listening socket made outside
  trap head_stop TERM
  cd / || exit 1
  export CLUSTER_INSIDE=1
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /dev/shm
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/sshd
  hostname head
  mount --bind "$E/slurm" "$E/etc/slurm"
  mount --rbind "$E/etc" /etc
  [ "$CLUSTER_CGROUPS" != yes ] || own_cgroups || die "no cgroups of version 1 for root"
  mount -t tmpfs -o size=12m,mode=1777 tmpfs "$B/small"   # for tests of a full disk
  [ -z "$CLUSTER_VENV" ] || bind_read_only "$CLUSTER_VENV" "$B/venv" || die "cannot show $CLUSTER_VENV"
  [ -z "$CLUSTER_HIDE" ] || mount -t tmpfs -o mode=755,size=4k tmpfs "$CLUSTER_HIDE"
  ip link set lo up
  ip link add br0 type bridge
  ip addr add "$NET.1/24" dev br0
  ip link set br0 up
  svc "$PYTHON" "$B/program/bin/accept.py" "$E/sshd_config" "$L/sshd.log" "$R/accept.pid" </dev/null >"$L/accept.out" 2>&1 &
  exec 3<&-
  head_services
  : >"$R/booted"
  while :; do sleep infinity & wait $!; done
}
node_init() { # NUMBER; pid 1 of a node
  local number=$1 tmp=$B/nodes/n$1/tmp
  export CLUSTER_INSIDE=1
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /dev/shm
  hostname "n$number"
  mkdir -p "$B/nodes/n$number/spool" "$tmp"
  chmod 1777 "$tmp"
  case $B/ in
    /tmp/*) # keep the cluster's own folder in the node's private /tmp
      mkdir -p "$tmp/${B#/tmp/}"
      mount --rbind "$B" "$tmp/${B#/tmp/}"
      mount --rbind "$tmp" /tmp
      ;;
    *) mount --bind "$tmp" /tmp ;;
  esac
  cd / || exit 1
  ip link set lo up
  until_ok 5 ip link show eth0
  ip addr add "$NET.$((10 + number))/24" dev eth0
  ip link set eth0 up
  svc slurmd </dev/null >"$L/slurmd-n$number.out" 2>&1
  while :; do sleep infinity & wait $!; done
}
