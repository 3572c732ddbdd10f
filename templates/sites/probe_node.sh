# Tries on a compute node what a job needs to start the next one, and what paths of containers need: dlctl/site_admin/node_probe.py runs this.
# dlctl prepends: folder (of Slurm's commands, or empty), partition and account (or empty).
# shellcheck shell=sh disable=SC2154
[ -z "$folder" ] || PATH=$folder:$PATH
for v in $(env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $v in SBATCH_*|SLURM_*|SQUEUE_*|SRUN_*) [ "$v" = SLURM_CONF ] || unset "$v" ;; esac
done
# shellcheck disable=SC2086 # without a partition or an account there is no option
srun --input=none --mpi=none --nodes=1 --ntasks=1 --time=2 --immediate=120 --job-name=dlctl \
  ${partition:+"--partition=$partition"} ${account:+"--account=$account"} /bin/sh -c '
echo "dlctl-node $(uname -n)"
said=$(sbatch --test-only --time=2 ${1:+"--partition=$1"} ${2:+"--account=$2"} --wrap=true 2>&1)
echo "dlctl-submit $? $(printf %s "$said" | tr "\n" " ")"
said=$(scontrol show job "$SLURM_JOB_ID" 2>&1 >/dev/null)
echo "dlctl-control $? $(printf %s "$said" | tr "\n" " ")"
said=$(unshare --user --map-root-user --mount mount -t tmpfs tmpfs /mnt 2>&1)
echo "dlctl-namespaces $? $(printf %s "$said" | tr "\n" " ")"' probe "$partition" "$account" </dev/null
