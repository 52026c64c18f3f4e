#!/bin/sh
# Slurm: watch the jobs of this job's user on this node, from its start to its end (slurm-epilog.sh).
# In slurm.conf:  Prolog=/etc/slurm/perfwatch/slurm-prolog.sh  Epilog=/etc/slurm/perfwatch/slurm-epilog.sh
# Where perfwatch.service runs on the nodes already, neither is needed.
# It never fails and never waits: a prolog that does drains the node.

perfwatch=${PERFWATCH:-/opt/perfwatch/bin/perfwatch}
state=${PERFWATCH_STATE:-/var/lib/perfwatch/slurm}
[ -n "$SLURM_JOB_ID" ] && [ -n "$SLURM_JOB_USER" ] && [ -x "$perfwatch" ] || exit 0

folder=$state/$SLURM_JOB_ID
mkdir -p "$folder" && chmod 0711 "$state" && chmod 0700 "$folder" || exit 0
# slurmd kills what a prolog leaves in its process group: the daemon begins in a session of its own, before this one ends.
setsid sh -c '"$@" </dev/null >/dev/null 2>"$0/log" & echo $! >"$0/.pid"' "$folder" \
    "$perfwatch" daemon --directory "$folder" --user "$SLURM_JOB_USER" --disk-budget "${PERFWATCH_DISK_GIB:-1}" \
    ${PERFWATCH_OPTIONS:-}
exit 0
