# shellcheck shell=sh
see_space() { # PATH: prints the option of df that shows what has run out there, and the folder
  at=$1
  while [ ! -e "$at" ]; do
    case $at in /* | */*) at=${at%/*} ;; *) at=. ;; esac
    at=${at:-/}
  done
  # Some file systems don't count inodes: they have none, and none are free.
  case $(df -Pi "$at" 2>/dev/null | awk 'END { print $2 ":" $4 }') in
    0:* | -:*) echo "-h $at" ;;
    *:0) echo "-i $at" ;;
    *) echo "-h $at" ;;
  esac
}
