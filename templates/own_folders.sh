# Says which folders are not the user's own: another user could put code there that runs as the
# victim. The login side's scripts and the batch script contain this file, so it is plain POSIX.
# shellcheck shell=sh
my_uid=$(id -u) others_write='-perm -0020 -o -perm -0002'
# A group that has the user's name usually has no other members.
my_group=$(getent group "$(id -gn 2>/dev/null)" 2>/dev/null)
[ "$(id -gn 2>/dev/null)" = "$(id -un 2>/dev/null)" ] && [ -z "${my_group##*:}" ] &&
  others_write='-perm -0002'
# shellcheck disable=SC2086 # $others_write is several words
not_own() { # folder, which may be a link: prints a line `folder<TAB>why`, or nothing
  [ -e "$1" ] || [ -L "$1" ] || return 0
  [ -d "$1" ] || { printf '%s\tis not a folder\n' "$1"; return; }
  [ -z "$(find "$1" -prune ! -user "$my_uid" -print)" ] ||
    printf '%s\tbelongs to another user\n' "$1"
  [ ! -L "$1" ] || [ -z "$(find "$1/." ! -name . -prune -o ! -user "$my_uid" -print)" ] ||
    printf '%s\tleads to a folder of another user\n' "$1"
  [ -z "$(find "$1/." ! -name . -prune -o \( $others_write \) -print)" ] ||
    printf '%s\tcan be written by other users\n' "$1"
}
each_above() { # command, absolute path: calls the command with each folder above the path
  above=${2%/*}
  # Nothing is gained where the home itself can be replaced: all that a user does begins there.
  while [ "$above" != "$my_home" ]; do
    [ ! -d "${above:-/}" ] || "$1" "${above:-/}"
    [ -n "$above" ] || return 0
    above=${above%/*}
  done
}
each_above_root() { # command, root: the folders above it, by its name, and by the place that links lead to
  case $2 in /*) root_path=$2 ;; *) root_path=$(pwd)/$2 ;; esac
  my_home=${HOME:-/}
  my_home=${my_home%/}
  each_above "$1" "${root_path%/}"
  root_place=$(cd -- "$2" 2>/dev/null && pwd -P) || return 0
  my_home=$(cd -- "${HOME:-/}" 2>/dev/null && pwd -P) && my_home=${my_home%/}
  [ "$root_place" = "${root_path%/}" ] || each_above "$1" "$root_place"
}
replaceable() { # folder above the root: prints a line if any user can rename what is in it
  # With a sticky bit only the folder's owner can, whom `doctor` tells of.
  [ -n "$(find -H "$1" -prune -perm -0002 ! -perm -1000 -print)" ] || return 0
  if [ -O "$1" ]; then
    printf '%s\tcan be written by other users\n' "$1"
  else
    printf '%s\tlets other users replace the folders in it\n' "$1"
  fi
}
folders_not_own() { # root, folders below it: the same lines; only the root may be a link
  each_above_root replaceable "$1"
  not_own "$1"
  shift
  for folder; do
    if [ -L "$folder" ]; then printf '%s\tis a link\n' "$folder"; else not_own "$folder"; fi
  done
}
