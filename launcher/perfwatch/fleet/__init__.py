"""One job on many hosts: the same look where the ranks are, one verdict here.

``engines`` reach the hosts (ClusterShell over ssh, srun inside an allocation, kubectl exec) and run ``perfwatch snapshot``
there; ``looking`` is what runs there; ``wire`` is what travels; ``asking`` gathers the answers and has triage judge them.
"""
