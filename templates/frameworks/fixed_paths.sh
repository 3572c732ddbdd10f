# The program names folders of the service's containers. It runs in a user namespace of its own, in which they exist,
# where the node allows that; a folder of such a name that the node has stays what it is.
DLCTL_SHOW='
show() { # WHAT AT: all that the node has there, with what is mounted below
  if [ -L "$1" ]; then cp -P "$1" "$2"
  elif [ -d "$1" ]; then mkdir -p "$2" && mount --rbind "$1" "$2"
  elif [ -f "$1" ]; then : >"$2" && mount --bind "$1" "$2"; fi
}
new_root() {
  mount -t tmpfs -o mode=755 tmpfs "$DLCTL_ROOT" && cd "$DLCTL_ROOT" && mkdir mnt .before || return
  for each in /* /.[!.]* /mnt/*; do
    if [ "$each" != /mnt ]; then show "$each" ".$each"; fi
  done
  if [ -n "$DLCTL_DATA_PATH" ] && [ ! -e /mnt/data ]; then show "$DLCTL_DATA" ".$DLCTL_DATA_PATH" || return; fi
  if [ -n "$DLCTL_RESULT_PATH" ] && [ ! -e /mnt/results ]; then show "$RESULT_DIR" ".$DLCTL_RESULT_PATH" || return; fi
  if [ ! -e /job ]; then show "$JOB_STATE_DIR" ./job || return; fi
  PATH=$PATH:/usr/sbin:/sbin
  pivot_root . .before && umount -l /.before && rmdir /.before && cd "$DLCTL_FOLDER"
}
'
export DLCTL_INSIDE=paths DLCTL_ROOT="${DLCTL_PROGRESS_FILE%/*}/root" DLCTL_FOLDER="$PWD"
own_user="unshare --user --map-user=$(id -u) --map-group=$(id -g)"
mkdir -p "$DLCTL_ROOT"
if why=$(unshare --user --map-root-user --mount /bin/sh -c "$DLCTL_SHOW new_root && $own_user true" 2>&1); then
  exec unshare --user --map-root-user --mount /bin/sh -c "$DLCTL_SHOW new_root && exec $own_user /bin/sh -c \"\$DLCTL_AGAIN\""
fi
echo "dlctl: WARNING: $(uname -n) can't show the program $DLCTL_DATA_PATH, $DLCTL_RESULT_PATH and /job: use \$DATA_DIR, \$RESULT_DIR and \$JOB_STATE_DIR (${why##*
})" >&2
