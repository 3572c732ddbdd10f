start_modules() { # a batch shell, and a shell that is no login shell, may lack `module`
  command -v module >/dev/null 2>&1 && return 0
  for init in "${MODULESHOME:-/nonexistent}/init/${BASH_VERSION:+ba}sh" /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
    /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/${BASH_VERSION:+ba}sh /usr/share/modules/init/${BASH_VERSION:+ba}sh; do
    # shellcheck disable=SC1090
    [ -r "$init" ] && . "$init" >/dev/null 2>&1 && command -v module >/dev/null 2>&1 && return 0
  done
  return 1
}
