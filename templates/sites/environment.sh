# Brings a shell into the state in which the site's jobs start: dlctl appends `site_environment` (templates/environment.sh.j2)
# to this. Answers go to file descriptor 3, whatever those lines print.
# shellcheck shell=sh disable=SC2329
exec 3>&1
fail() { # SENTENCE HINT
  printf 'dlctl-failed %s\ndlctl-hint %s\n' "$1" "$2" >&3
  exit 1
}
