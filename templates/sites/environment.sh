# Brings a shell into the state in which the site's jobs start: dlctl appends `site_environment` (modules,
# the site's own shell lines, variables) to this. Answers go to file descriptor 3, whatever those lines print.
# shellcheck shell=sh disable=SC2329
exec 3>&1
start_modules() { # a non-login shell may lack `module`
  command -v module >/dev/null 2>&1 && return 0
  for init in "${MODULESHOME:-/nonexistent}/init/sh" /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
    /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh /usr/share/modules/init/sh; do
    # shellcheck disable=SC1090
    [ -r "$init" ] && . "$init" >/dev/null 2>&1 && command -v module >/dev/null 2>&1 && return 0
  done
  return 1
}
load_module() { # NAME
  start_modules || fail "this site has no \`module\` command, and the site's file asks for the module $1" \
    "remove environment.modules from the site's file"
  module load "$1" || fail "the module $1 could not be loaded" "check \`module avail\` there and environment.modules of the site's file"
}
fail() { # SENTENCE HINT
  printf 'dlctl-failed %s\ndlctl-hint %s\n' "$1" "$2" >&3
  exit 1
}
