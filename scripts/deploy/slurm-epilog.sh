#!/bin/sh
# Slurm: end the watch that slurm-prolog.sh has started, and leave its recordings to the user whose job it was:
#   perfwatch replay /var/lib/perfwatch/slurm/JOBID
# It never fails, and waits for ten seconds at most: an epilog that does either keeps the node from the next job.

state=${PERFWATCH_STATE:-/var/lib/perfwatch/slurm}
keep_days=${PERFWATCH_KEEP_DAYS:-14}
[ -n "$SLURM_JOB_ID" ] || exit 0

folder=$state/$SLURM_JOB_ID
[ -f "$folder/.pid" ] || exit 0
pid=$(cat "$folder/.pid")
# The pid may be another process' by now: only a perfwatch is asked to leave.
if grep -q perfwatch "/proc/$pid/cmdline" 2>/dev/null; then
    kill -TERM "$pid" 2>/dev/null
    tries=100
    while [ "$tries" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
        tries=$((tries - 1))
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null
fi
rm -f "$folder/.pid" "$folder/.daemon"
[ -n "$SLURM_JOB_UID" ] && chown -R "$SLURM_JOB_UID" "$folder"
# Old ones go: by name, so that nothing but folders of jobs can be meant.
find "$state" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' -mtime "+$keep_days" -exec rm -rf {} + 2>/dev/null
exit 0
