#!/bin/bash
# A container as an ordinary user's Apptainer runs one: `box.sh exec [--bind PATH] IMAGE COMMAND…`, with namespaces of its own.
# Each line `FROM AT` of IMAGE is a part of this machine that is in the image, without Slurm's commands. It also sees
# /proc, /sys, /dev, /tmp (but no folders of tests) and what APPTAINER_BIND names. PATH is the image's, all other variables stay.
set -e
[ "$1" = exec ] || { echo "box.sh: $1: unknown command" >&2; exit 2; }
[ "$2" != --bind ] || { APPTAINER_BIND=${APPTAINER_BIND:+$APPTAINER_BIND,}$3; export APPTAINER_BIND; shift 2; }
[ -f "$2" ] || { echo "FATAL:   could not open image $2" >&2; exit 255; }
export BOX_IMAGE=$2 BOX_FOLDER=$PWD
BOX_ME="--map-user=$(id -u) --map-group=$(id -g)"
export BOX_ME
shift 2
# shellcheck disable=SC2016
exec unshare --user --map-root-user --mount /bin/bash -c '
set -e
root=$BOX_IMAGE.root
mkdir -p "$root"
mount -t tmpfs -o mode=755 tmpfs "$root"
show() { # FROM AT
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${2%/*}"; : >"$root$2"; fi
  mount --rbind "$1" "$root$2"
}
while read -r from at; do show "$from" "$at"; done <"$BOX_IMAGE"
for link in /bin /lib /lib64 /sbin; do cp -P "$link" "$root$link"; done
for command in sbatch srun salloc squeue scancel scontrol sinfo sacct sattach; do
  [ ! -e "/usr/bin/$command" ] || mount --bind /dev/null "$root/usr/bin/$command"
done
for each in /proc /sys /dev /tmp; do show "$each" "$each"; done
for each in "$root"/tmp/pytest-of-*; do [ ! -d "$each" ] || mount -t tmpfs tmpfs "$each"; done
mkdir -p "$root/run" "$root/var"
[ -e "$root/var/tmp" ] || ln -s ../tmp "$root/var/tmp"
IFS=,
for each in $APPTAINER_BIND; do show "${each%%:*}" "${each#*:}"; done
unset IFS
mkdir "$root/.before"
cd "$root"
PATH=$PATH:/usr/sbin:/sbin
pivot_root . .before
umount -l /.before
cd "$BOX_FOLDER" 2>/dev/null || cd /
exec unshare --user $BOX_ME env -u LD_LIBRARY_PATH PATH="${APPTAINERENV_PREPEND_PATH:+$APPTAINERENV_PREPEND_PATH:}/usr/bin:/bin" "$@"
' box.sh "$@"
