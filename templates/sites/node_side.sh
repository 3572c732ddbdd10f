# Runs one module of a job's runtime as its job would: dlctl/lifecycle/remote_module.py runs this after environment.sh.
# dlctl prepends: runtime_dir, python (empty: any of this host's, for what needs Slurm's commands and no packages), site,
# mark, and functions: `in_container`, `host_python`, and `node_module`, which runs its arguments followed by the
# module's name and arguments.
# shellcheck shell=sh disable=SC2154
site_environment >&2
if [ -z "$python" ]; then
  python=$(host_python) || fail "there is no Python 3.8 or newer on $(uname -n)" "load a module that has one: environment.modules of the site's file"
elif ! in_container "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 1>&2 3>&-; then
  fail "there is no Python 3.10 or newer at $python on $(uname -n)" \
    "run: dlctl sites setup $site; if Python works only on compute nodes, add --on-node"
fi
cd "$runtime_dir" ||
  fail "the runtime $runtime_dir is gone" "submit the training again, or restore what was removed there"
unset PYTHONHOME
PYTHONPATH=$runtime_dir${PYTHONPATH:+:$PYTHONPATH}
PYTHONSAFEPATH=1
PATH=$(dirname "$python"):$PATH
DLCTL_ANSWER_MARK=$mark
export PYTHONPATH PYTHONSAFEPATH PATH DLCTL_ANSWER_MARK
node_module in_container "$python" 3>&-
