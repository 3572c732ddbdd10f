# What each learner of doctor's job runs: dlctl/doctor/deep.py sends this and reads the lines.
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
    seen = world.allgather(os.environ.get("RANK", "?"))
    print("dlctl-world %d %s" % (world.size, ",".join(seen)), flush=True)
except Exception as error:
    print("dlctl-nompi %s" % " ".join(str(error).split()), flush=True)
PYTHON
[ "${RANK:-0}" = 0 ] && [ -n "${SLURM_JOB_ID:-}" ] || exit 0
for v in $(env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $v in SBATCH_* | SLURM_* | SQUEUE_* | SRUN_*) case $v in SLURM_CONF | SLURM_JOB_ID) ;; *) unset "$v" ;; esac ;; esac
done
[ -z "${DOCTOR_SLURM:-}" ] || PATH=$DOCTOR_SLURM:$PATH
said=$(sbatch --test-only --time=2 ${DOCTOR_PARTITION:+"--partition=$DOCTOR_PARTITION"} ${DOCTOR_ACCOUNT:+"--account=$DOCTOR_ACCOUNT"} --wrap=true 2>&1)
echo "dlctl-submit $? $(printf %s "$said" | tr '\n' ' ')"
said=$(scontrol show job "$SLURM_JOB_ID" 2>&1 >/dev/null)
echo "dlctl-control $? $(printf %s "$said" | tr '\n' ' ')"
said=$(unshare --user --map-root-user --mount mount -t tmpfs tmpfs /mnt 2>&1)
echo "dlctl-namespaces $? $(printf %s "$said" | tr '\n' ' ')"
exit 0
