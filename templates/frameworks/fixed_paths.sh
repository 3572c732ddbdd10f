# The program names folders of the service's containers. It runs in a user namespace of its own, in which they exist,
# where the node allows that; a folder of such a name that the node has stays what it is.
if unshare --user --map-root-user --mount true 2>/dev/null; then
  export DLCTL_INSIDE=paths DLCTL_ROOT="${DLCTL_PROGRESS_FILE%/*}/root" DLCTL_FOLDER="$PWD"
  DLCTL_USER="--map-user=$(id -u) --map-group=$(id -g)"
  export DLCTL_USER
  mkdir -p "$DLCTL_ROOT"
  exec unshare --user --map-root-user --mount /bin/sh -c '
    show() { # WHAT AT: all that the node has there, with what is mounted below
      if [ -L "$1" ]; then cp -P "$1" "$2"
      elif [ -d "$1" ]; then mkdir -p "$2" && mount --rbind "$1" "$2"
      elif [ -f "$1" ]; then : >"$2" && mount --bind "$1" "$2"; fi
    }
    new_root() {
      mount -t tmpfs -o mode=755 tmpfs "$DLCTL_ROOT" && cd "$DLCTL_ROOT" && mkdir mnt .before || return
      for each in /* /.[!.]*; do
        if [ "$each" = /mnt ]; then for each in /mnt/*; do show "$each" ".$each"; done
        else show "$each" ".$each"; fi
      done
      if [ -n "$DLCTL_DATA_PATH" ] && [ ! -e /mnt/data ]; then show "$DLCTL_DATA" ".$DLCTL_DATA_PATH"; fi
      if [ -n "$DLCTL_RESULT_PATH" ] && [ ! -e /mnt/results ]; then show "$RESULT_DIR" ".$DLCTL_RESULT_PATH"; fi
      if [ ! -e /job ]; then show "$JOB_STATE_DIR" ./job; fi
      PATH=$PATH:/usr/sbin:/sbin
      pivot_root . .before && umount -l /.before && rmdir /.before && cd "$DLCTL_FOLDER"
    }
    new_root || { echo "dlctl: $(uname -n) can not show the program $DLCTL_DATA_PATH, $DLCTL_RESULT_PATH and /job: use \$DATA_DIR, \$RESULT_DIR and \$JOB_STATE_DIR" >&2; exit 1; }
    exec unshare --user $DLCTL_USER /bin/sh -c "$DLCTL_AGAIN"'
fi
echo "dlctl: WARNING: $(uname -n) allows no user namespaces, so that $DLCTL_DATA_PATH, $DLCTL_RESULT_PATH and /job don't exist here: use \$DATA_DIR, \$RESULT_DIR and \$JOB_STATE_DIR" >&2
