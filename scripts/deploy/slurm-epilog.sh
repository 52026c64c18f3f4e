#!/bin/sh
# Slurm: end the watch that slurm-prolog.sh started. Its recordings stay root's, and readable for the user of the job:
#   perfwatch replay /var/lib/perfwatch/slurm/JOBID
# It never fails, and waits for ten seconds at most: an epilog that does either keeps the node from the next job.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
state=${PERFWATCH_STATE:-/var/lib/perfwatch/slurm}
keep_days=${PERFWATCH_KEEP_DAYS:-14}
case $SLURM_JOB_ID in '' | *[!0-9]*) exit 0 ;; esac

# True if this is a folder that the prolog made.
made_by_prolog() {
    [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ]
}

# True if the daemon of this folder runs; sets pid. The start time and the boot tell it from a later process of this pid.
runs() {
    [ -f "$1/.pid" ] || return 1
    read -r pid started boot <"$1/.pid"
    [ -n "$boot" ] && [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
    now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f1,20)
    [ "${now#* }" = "$started" ] && [ "${now%% *}" != Z ]
}

# Send a signal to every daemon of this job; false if none runs.
signal_all() {
    some=1
    for folder in "$state/$SLURM_JOB_ID" "$state/$SLURM_JOB_ID".[0-9]*; do
        made_by_prolog "$folder" || continue
        if runs "$folder"; then
            some=0
            kill "-$1" "$pid" 2>/dev/null
        else
            rm -f "$folder/.pid"
        fi
    done
    return $some
}

made_by_prolog "$state" || exit 0
if signal_all TERM; then
    tries=100
    while [ "$tries" -gt 0 ] && signal_all 0; do
        tries=$((tries - 1))
        sleep 0.1
    done
    signal_all KILL
fi

# Old recordings go, a few at a time. Only root makes folders here, so no other user can choose what is removed or when.
find "$state" -mindepth 1 -maxdepth 1 -type d -user "$(id -u)" -name '[0-9]*' -mtime "+$keep_days" 2>/dev/null |
    head -n 10 | while IFS= read -r folder; do
    case ${folder##*/} in *[!0-9.]*) continue ;; esac
    runs "$folder" || timeout 1 rm -rf -- "$folder"
done
exit 0
