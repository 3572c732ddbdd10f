host_python() { # prints a Python of this host with which the supervisor can start Slurm's commands
  for each in python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 \
    /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do
    if each=$(command -v "$each") && "$each" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
      printf '%s\n' "$each"
      return 0
    fi
  done
  return 1
}
