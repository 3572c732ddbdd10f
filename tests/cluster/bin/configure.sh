# shellcheck shell=bash
# Every file that the cluster reads, written again at each cold start. Runs outside the namespaces.
# shellcheck disable=SC2154,SC2153

configure() {
  mkdir -p "$E/slurm" "$R" "$L" "$B/state" "$B/munge" "$B/dev" "$B/keys" "$B/venv" "$B/small" "$THOME" || die "cannot write $B"
  chmod 755 "$B" "$E" "$R" "$L" "$B/munge" "$B/home" "$E/slurm"
  chmod 700 "$B/state"
  save_settings
  configure_keys
  configure_etc
  configure_sshd >"$E/sshd_config"
  configure_mariadb >"$E/my.cnf"
  configure_slurm >"$E/slurm/slurm.conf"
  configure_mail >"$E/slurm/mail"
  chmod 755 "$E/slurm/mail"
  configure_gres >"$E/slurm/gres.conf"
  [ "$CLUSTER_CGROUPS" != yes ] || configure_cgroup >"$E/slurm/cgroup.conf"
  configure_slurmdbd >"$E/slurm/slurmdbd.conf"
  chmod 600 "$E/slurm/slurmdbd.conf"
}

configure_keys() {
  [ -s "$E/munge.key" ] || (umask 077; head -c 128 /dev/urandom >"$E/munge.key")
  [ -s "$E/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C testbed -f "$E/host_key"
  [ -s "$B/keys/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C testbed-user -f "$B/keys/id_ed25519"
  cp "$B/keys/id_ed25519.pub" "$E/authorized_keys"
  chmod 644 "$E/authorized_keys"
}

configure_client() { # once the port is known
  local port
  port=$(cat "$R/ssh_port")
  echo "[127.0.0.1]:$port $(cat "$E/host_key.pub")" >"$B/keys/known_hosts"
  cat >"$B/ssh_config" <<X
Host testbed
  HostName 127.0.0.1
  Port $port
  User $TUSER
  IdentityFile $B/keys/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $B/keys/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
X
}

# A whole copy, not bind mounts of single files: a useradd or apt-get outside renames a new file over
# /etc/passwd, which undoes such a mount.
configure_etc() {
  local i
  rm -rf "${E:?}/etc"
  mkdir -p "$E/etc"
  cp -a /etc/. "$E/etc/" 2>/dev/null
  rm -rf "$E/etc/slurm" "$E/etc/resolv.conf"
  mkdir -p "$E/etc/slurm"
  : >"$E/etc/resolv.conf"   # no name server in there: fail at once
  sed 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf >"$E/etc/nsswitch.conf"
  {
    echo "127.0.0.1 localhost"
    echo "$NET.1 head"
    for i in $(seq "$CLUSTER_NODES"); do echo "$NET.$((10 + i)) n$i"; done
  } >"$E/etc/hosts"
  if is_root; then
    { grep -v "^$TUSER:" /etc/passwd; echo "$TUSER:x:$USER_ID:$USER_ID:cluster user:$THOME:/bin/bash"; } >"$E/etc/passwd"
    { grep -v "^$TUSER:" /etc/group; echo "$TUSER:x:$USER_ID:"; } >"$E/etc/group"
    [ "$(stat -c %u "$THOME")" = "$USER_ID" ] || chown -R "$USER_ID:$USER_ID" "$THOME"
  else
    awk -F: -v OFS=: -v u="$TUSER" -v h="$THOME" '$1==u{$6=h;$7="/bin/bash"}{print}' /etc/passwd >"$E/etc/passwd"
  fi
}

configure_sshd() {
  cat <<X
HostKey $E/host_key
AuthorizedKeysFile $E/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
PrintMotd no
MaxSessions 100
Subsystem sftp internal-sftp
X
}

configure_mariadb() {
  cat <<X
[mysqld]
datadir=$B/db
socket=$R/mysqld.sock
pid-file=$R/mysqld.pid
log-error=$L/mysqld.log
skip-networking=0
bind-address=127.0.0.1
port=3306
skip-name-resolve
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
performance_schema=0
X
  ! is_root || echo user=root
}

configure_mail() { # in the place of a mail program: a line for each mail
  cat <<X
#!/bin/sh
printf '%s\n' "\$*" >>"$L/mails"
X
}

# cred_expire=5: a requeued job waits for the credential's lifetime, 120 s otherwise.
# sched_min_interval, batch_sched_delay, SlurmdTimeout...: the tests wait for what a site waits minutes for.
# TCPTimeout: in a second, the slurmd of a machine with too much to do does not always answer.
configure_slurm() {
  local nodes="n[1-$CLUSTER_NODES]" gres=""
  [ "$CLUSTER_GPUS" = 0 ] || gres="Gres=gpu:$CLUSTER_GPUS"
  cat <<X
ClusterName=testbed
SlurmctldHost=head
SlurmUser=$CLUSTER_LOGIN
SlurmdUser=$CLUSTER_LOGIN
AuthType=auth/munge
AuthInfo=socket=$B/munge/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$B/state
SlurmdSpoolDir=$B/nodes/%n/spool
SlurmctldPidFile=$R/slurmctld.pid
SlurmdPidFile=$R/slurmd-%n.pid
MailProg=$E/slurm/mail
SlurmctldLogFile=$L/slurmctld.log
SlurmdLogFile=$L/slurmd-%n.log
SlurmdParameters=config_overrides
$(configure_tracking)
JobAcctGatherFrequency=task=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass=$B/munge/munge.sock
AccountingStorageEnforce=limits
AccountingStorageTRES=gres/gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
EnforcePartLimits=ALL
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1,nohold_on_prolog_fail
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=pmix
ReturnToService=2
SlurmdTimeout=5
SlurmctldTimeout=10
MessageTimeout=5
TCPTimeout=3
BatchStartTimeout=10
InactiveLimit=0
MinJobAge=300
GresTypes=gpu
NodeName=$nodes CPUs=$CLUSTER_CPUS RealMemory=$CLUSTER_MEMORY_MB $gres
PartitionName=debug Nodes=$nodes Default=YES DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=n1 DefaultTime=1 MaxTime=2 MaxNodes=1 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=closed Nodes=$nodes AllowAccounts=nobody DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge Nodes=$nodes DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
$CLUSTER_SLURM_EXTRA
X
}

configure_gres() { # a GPU must be a character device, else CUDA_VISIBLE_DEVICES is never set
  local i
  [ "$CLUSTER_GPUS" != 0 ] || return 0
  for i in $(seq 0 $((CLUSTER_GPUS - 1))); do ln -sf /dev/null "$B/dev/nvidia$i"; done
  echo "AutoDetect=off"
  echo "NodeName=n[1-$CLUSTER_NODES] Name=gpu File=$B/dev/nvidia[0-$((CLUSTER_GPUS - 1))]"
}

configure_tracking() {
  if [ "$CLUSTER_CGROUPS" = yes ]; then
    printf '%s\n' ProctrackType=proctrack/cgroup TaskPlugin=task/cgroup JobAcctGatherType=jobacct_gather/cgroup \
      KillWait=30 # Slurm's default: who gets SIGTERM has so long to save
  else
    printf '%s\n' ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherType=jobacct_gather/linux \
      JobAcctGatherParams=OverMemoryKill KillWait=2
  fi
}

configure_cgroup() { # no ConstrainDevices: the GPUs here are /dev/null
  cat <<X
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=yes
ConstrainRAMSpace=yes
X
}

configure_slurmdbd() {
  cat <<X
AuthType=auth/munge
AuthInfo=socket=$B/munge/munge.sock
DbdHost=head
SlurmUser=$CLUSTER_LOGIN
LogFile=$L/slurmdbd.log
PidFile=$R/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
X
}
