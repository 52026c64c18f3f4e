"""The wait chain: from the training thread through locks, queues, workers, children and connections to whatever does not move.

``chain`` says where one wait leads, and walks; ``node`` has what is known of one thread. The wait graph in ``graph/`` is made of
the same edges and says what can still release a wait. A chain says what is printed: the way, the culprit, and what it waits for.

==============  =============================================================================================
module          where it leads if a thread waits for
==============  =============================================================================================
threads         another thread of its process: a lock, a queue, a join, the GIL, native code
workers         another process: a DataLoader worker, a pool, a child
other_end       a pipe or a connection
libraries       an event loop, an actor of Ray, a remote call, a collective that was only begun
devices         a GPU
polling         a file that it looks for
==============  =============================================================================================

Two others read a whole case, for the rules: ``napping`` (children that only sleep and ask) and ``outside`` (processes outside of the job).
"""
