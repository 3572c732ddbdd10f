# Says which folders are not the user's own: another user could put code there that runs as the
# victim. The login side's scripts and the batch script contain this file, so it is plain POSIX.
# shellcheck shell=sh
my_uid=$(id -u) others_write='-perm -0020 -o -perm -0002'
# A group that has the user's name has no other members.
[ "$(id -gn 2>/dev/null)" = "$(id -un 2>/dev/null)" ] && others_write='-perm -0002'
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
folders_not_own() { # root, folders below it: the same lines; only the root may be a link
  not_own "$1"
  shift
  for folder; do
    if [ -L "$folder" ]; then printf '%s\tis a link\n' "$folder"; else not_own "$folder"; fi
  done
}
