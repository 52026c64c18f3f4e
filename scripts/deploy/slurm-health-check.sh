#!/bin/sh
# Slurm: drain this node where perfwatch says that its hardware or driver is at fault. In slurm.conf:
#   HealthCheckProgram=/etc/slurm/perfwatch/slurm-health-check.sh
#   HealthCheckInterval=60
# It asks the metrics of the daemon here (perfwatch.service serves them on 127.0.0.1:9123). Running jobs continue; a person resumes the
# node: scontrol update nodename=NODE state=resume. PERFWATCH_DRY_RUN=1 in its first lines leaves it at a line in the log of the node.
# Where nothing is known the node stays as it is: a health check that fails for its own reasons would empty the cluster.

PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH
node=${SLURMD_NODENAME:-$(hostname -s)}
said=$("$(dirname "$0")/actions/node-problem")
[ $? -eq 1 ] || exit 0
scontrol --oneliner show node "$node" | grep -q 'Reason=perfwatch' && exit 0
if [ "${PERFWATCH_DRY_RUN:-0}" = 1 ]; then
    logger -t perfwatch "would drain $node: $said" 2>/dev/null
else
    scontrol update nodename="$node" state=drain reason="$said"
fi
exit 0
