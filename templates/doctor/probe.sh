# What each learner of doctor's job runs: dlctl/doctor/deep.py sends this and reads the lines. The scheduler's
# `chaining_script` follows.
# shellcheck shell=sh
echo "dlctl-node $(uname -n)"
[ "$(cat "$MODEL_DIR/token")" = "$DOCTOR_TOKEN" ] && echo "dlctl-shared yes"
if [ -d "$HOME" ] && [ -w "$HOME" ]; then echo "dlctl-home $HOME"; else echo "dlctl-nohome $HOME"; fi
"${PYTHON:-python}" - <<'PYTHON'
import os, time
print("dlctl-clock %.3f" % time.time(), flush=True)
try:
    import torch
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    print("dlctl-torch %s" % torch.__version__, flush=True)
    if count:
        value = float((torch.ones(8, device="cuda") * 2).sum())
        print("dlctl-gpus %d %s%s" % (count, names, "" if value == 16.0 else ", which computes wrongly"), flush=True)
    else:
        print("dlctl-gpus 0", flush=True)
except Exception as error:
    print("dlctl-notorch %s" % " ".join(str(error).split()), flush=True)
try:
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    ranks = world.allgather(os.environ.get("RANK", "?"))
    print("dlctl-world %d %s" % (world.size, ",".join(ranks)), flush=True)
except Exception as error:
    print("dlctl-nompi %s" % " ".join(str(error).split()), flush=True)
PYTHON
[ "${RANK:-0}" = 0 ] || exit 0
tell() { # KIND COMMAND...
  echo "dlctl-$1 $(shift && output=$("$@" 2>&1); echo "$? $output" | tr '\n' ' ' | cut -c1-500)"
}
tell namespaces unshare --user --map-root-user --mount mount -t tmpfs tmpfs /mnt
