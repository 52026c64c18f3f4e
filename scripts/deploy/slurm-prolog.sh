#!/bin/sh
# Slurm: watch this job on this node, from its start to its end (slurm-epilog.sh).
# In slurm.conf:  Prolog=/etc/slurm/perfwatch/slurm-prolog.sh  Epilog=/etc/slurm/perfwatch/slurm-epilog.sh
# Where perfwatch.service runs on the nodes, neither is needed.
# While the job runs, and for two weeks after it, its user types:
#   perfwatch replay /var/lib/perfwatch/slurm/JOBID        or: cat /var/lib/perfwatch/slurm/JOBID/log
# A requeued job is recorded in JOBID.1, JOBID.2, ...
#
# All that lies in the state folder belongs to root, always: the user reads it by an access control list (daemon
# --readable-by) and can change nothing. So root never follows a link, reads a pid or opens a log that a user made.
# The prolog never fails and never waits: one that does drains the node.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
perfwatch=${PERFWATCH:-/opt/perfwatch/bin/perfwatch}
state=${PERFWATCH_STATE:-/var/lib/perfwatch/slurm}
case $SLURM_JOB_ID in '' | *[!0-9]*) exit 0 ;; esac
case $SLURM_JOB_UID in '' | *[!0-9]*) exit 0 ;; esac
[ -x "$perfwatch" ] || exit 0

umask 022
mkdir -p "$state" || exit 0
if [ -L "$state" ] || [ ! -O "$state" ]; then
    echo "perfwatch: job $SLURM_JOB_ID is not watched, because $state is a link or belongs to a user: mv $state $state.old" >&2
    exit 0
fi
chmod 0711 "$state" || exit 0
umask 077

# A new folder each time: what a start of this job left stays as it is.
folder=$state/$SLURM_JOB_ID
restart=0
while [ -e "$folder" ] || [ -L "$folder" ]; do
    restart=$((restart + 1))
    folder=$state/$SLURM_JOB_ID.$restart
done
mkdir "$folder" || exit 0

# slurmd kills what a prolog leaves in its process group: the daemon begins in a session of its own, before this one ends.
# A pid names a process only together with its start time and the boot: the 20th field after the name in stat.
setsid sh -c '
    "$@" </dev/null >/dev/null 2>"$0/log" &
    echo "$! $(sed "s/.*) //" "/proc/$!/stat" | cut -d" " -f20) $(cat /proc/sys/kernel/random/boot_id)" >"$0/.pid"
' "$folder" "$perfwatch" daemon --directory "$folder" --slurm-job "$SLURM_JOB_ID" --user "$SLURM_JOB_UID" \
    --readable-by "$SLURM_JOB_UID" --disk-budget "${PERFWATCH_DISK_GIB:-1}" ${PERFWATCH_OPTIONS:-}
exit 0
