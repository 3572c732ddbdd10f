# What a job would find on this site: `dlctl doctor` runs this after environment.sh.
# dlctl prepends: root, python (or nothing), container (yes, or nothing), mpirun, own_pythons (of environments without a container), and
# `see_space` and `own_environments`, which tries the set-up of each. Each answer is one line `dlctl-KIND TEXT`.
# shellcheck shell=sh disable=SC2154
own_environments >/dev/null 2>&1
site_environment >/dev/null 2>&1
probe=$root/.dlctl-probe.$$
umask go-w # a submission refuses a root that others can write to
if why=$(mkdir -p "$root" 2>&1 && { true >"$probe"; } 2>&1); then
  rm -f "$probe"
  printf 'dlctl-root %s\n' "$(df -Pk "$root" 2>/dev/null | awk 'NR == 2 { print $4 }')" >&3
  df -Pi "$root" 2>/dev/null | awk 'END { print "dlctl-inodes " $2 " " $4 }' >&3
  timeout 10 quota -w 2>/dev/null | sed -n 's/^/dlctl-quota /; 1,20p' >&3
else
  printf 'dlctl-unwritable %s\n' "$(printf %s "$why" | tail -n 1)" >&3
  printf 'dlctl-room %s\n' "$(see_space "$root")" >&3
fi
printf 'dlctl-mpirun %s\n' "$(PATH=${python:+${python%/*}:}$PATH && command -v "$mpirun")" >&3
for each in $own_pythons; do
  [ -x "$each" ] || printf 'dlctl-absent %s\n' "$each" >&3
done
[ -n "$python" ] || exit 0
if [ -n "$container" ]; then
  printf 'dlctl-host-python %s\n' "$(host_python)" >&3
  # shellcheck disable=SC2016
  if ! why=$(in_container sh -c 'true >"$0" && rm "$0"' "$probe" 2>&1 >/dev/null); then
    if in_container true >/dev/null 2>&1; then lack=inside; else lack=started; fi
    printf 'dlctl-not-%s %s\n' "$lack" "$(printf '%s\n' "$why" | sed 's/\x1b\[[0-9;]*m//g' | grep . | tail -n 1)" >&3
  fi
fi
in_container "$python" - 3>&1 >/dev/null 2>&1 <<'PYTHON' | sed 's/^/dlctl-/' >&3
import glob, os, sys
from importlib import import_module, metadata
out = os.fdopen(3, "w")
out.write("python %d.%d.%d\n" % sys.version_info[:3])
for name in ("torch", "mpi4py", "h5py", "numpy", "watchdog"):
    try:
        import_module(name)
        out.write("package %s %s\n" % (name, metadata.version(name)))
    except Exception as error:
        out.write("missing %s %s\n" % (name, " ".join(str(error).split())))
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    version = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    out.write("mpi %s\n" % version.split(",")[0])  # Open MPI adds who built it, and when
except Exception as error:
    out.write("no-mpi %s\n" % " ".join(str(error).split()))
out.write("gpus %d\n" % len(glob.glob("/dev/nvidia[0-9]*")))
try:
    import_module("pynvml")
    out.write("nvml %s\n" % metadata.version("nvidia-ml-py"))
except Exception as error:
    out.write("no-nvml %s\n" % " ".join(str(error).split()))
PYTHON
