"""What waits for what, and which task could still release it.

``model`` has the graph and its solver, ``claims`` says for each kind of resource which tasks can release it (``collectives`` for calls
between ranks), and ``decide`` builds the graph of a case and turns what can become of a wait and its silence into a
state. Numbers stand in ``thresholds``.

A wait is SETTLED if no task that could release it will. This holds only if every possible releaser is seen (*complete*):

=============  ===================================================  ====================================================
resource       claimed by                                           complete
=============  ===================================================  ====================================================
LOCK BARRIER   the thread in a ``with`` block of that name, else    yes; a shared lock only if a process of the job or
JOIN           every other thread of the process; a shared lock:    one that has ended can hold it
               all Python processes of the job
CONDITION      the threads whose functions set, notify or put, and  unless a signal handler, a file of the kernel's, a
QUEUE          those in native code; else as above                  native thread that listens, or the wait's own timeout
                                                                    may release it
NATIVE         other threads, children                              no
UNKNOWN
POOL CHILD     the processes that CPython's, torch's or Ray's       yes
GIL CALL       functions show; of an idle pool: none
PIPE           the holders of the other end                         yes; of a FIFO: no
EVENTFD        the processes that hold it, the threads of its own   as a CONDITION, if the kernel lists the holders
FILE_LOCK      its holders and what they have started               if the kernel lists a holder
FILE           threads, children, the other ranks                   no
DISK           none                                                 no
SOCKET         the holders of the other end; bytes that arrive; of  no
               both ends in one process: its other threads
STORE          any rank that is not at the store itself             if the ranks have met and all are seen; before that
                                                                    any client may set a key
GROUP_CALL     ALL ranks that have not come to the call             if all ranks and their calls are known, or one of
                                                                    them has ended
MISMATCH       none: the ranks are in different calls               yes; where only the traffic shows it: on GPUs
FABRIC         data that travels                                    on GPUs if recorders or RAS say that all ranks are in
                                                                    the call, or if the network loses packets
GPU            the card                                             if it is known which card it is
               none: a loop of one pass that turns for a hang       no: the loop may end
               timeout while the card serves it
PROCESS        its main thread; its other threads and children      if the process was sampled
RANK           may; CPU time and bytes that grow; of a rank what
               others get of it: passes of a model, a save, data
TERMINAL       none                                                 yes
DRIVER
FLAG           other threads, children, ranks                       no
LOOP           the thread that runs in it, while it may give        no
               something; then as a FLAG. One that reads a file anew
               in each turn and sleeps in between gives nothing
TIMER          itself, at its deadline                              yes
TASKS          none: a server without a request                     no
=============  ===================================================  ====================================================

How long a wait may be silent is decided here as well, for all rules (``decide.patience_of``): by its prospect, and for an OPEN wait by
what its sinks run. A loop that counts gets five hang timeouts, a regular expression that keeps the GIL half of one, anything else one.
A training thread that keeps the GIL from threads that ask for it is in one call of native code: a loop of Python passes the GIL on.

A thread that runs is LIVE until it has had its time and the rank that waits got nothing (``claims``): the hang timeout for
a loop without a known end, half of it for a regular expression, five times as long for a loop that counts and moves no data, and that
only in a run that has trained: the preparation of one may take hours. Any other long call of C computes.

A card on which other jobs compute as well is OPEN, and so is a call that a rank may be in behind it: what it does for this job is not seen.

A resource that ``strangers`` may release (a file, a key of a store, the far end of a connection) makes a hang medium at most.

To add a kind: a member of ``model.Kind``, a function in ``claims``, and a line in ``decide.BY_KIND``.
"""
