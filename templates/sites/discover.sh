# Functions that inspect a site and change nothing there: dlctl/site_admin/discovery.py runs this after environment.sh,
# then what schedulers have (templates/schedulers/KIND-site.sh), and then the questions.
# shellcheck shell=sh disable=SC2329
LC_ALL=C
export LC_ALL

limit() { # SECONDS COMMAND...: a file system or a controller that hangs must not hold up the rest
  if command -v timeout >/dev/null 2>&1; then timeout "$@"; else shift; "$@"; fi
}
login_path() { # the PATH of a login shell, whatever shell it is (csh knows no `-lc`)
  [ -x "${SHELL:-}" ] || return 0
  printf 'exec env\n' | limit 10 "$SHELL" -l 2>/dev/null | sed -n 's/^PATH=//p' | tail -n 1
}
pythons() { # VERSION|PATH|PREFIX
  for folder in $(printf '%s' "$PATH:/usr/bin:/usr/local/bin" | tr ':' '\n' | awk 'NF && !seen[$0]++'); do
    for name in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
      [ -x "$folder/$name" ] || continue
      limit 10 "$folder/$name" -c 'import sys; print("%d.%d.%d|%s|%s" % (sys.version_info[:3] + (sys.executable, sys.prefix)))' 2>/dev/null
    done
  done | awk -F'|' '!seen[$1 "|" $3]++' # /bin/python3 and /usr/bin/python3.11 are one
}
modules() {
  start_modules || return 1
  printf 'kind=%s\n' "$(if [ -n "${LMOD_CMD:-}${LMOD_PKG:-}" ]; then echo Lmod; else echo 'Environment Modules'; fi)"
  for name in python openmpi cuda; do
    module -t avail "$name" 2>&1 | grep -v ':$' | head -n 30
  done
}
