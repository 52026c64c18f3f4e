"""Every number about GPUs that more than one module uses, with where it comes from. Measured on H200 unless stated otherwise.

Shares are of time or of a unit's maximum, 0 to 1.
"""

# Windows
NOW_SECONDS = 5.0  # what a card does now
LATELY_SECONDS = 20.0  # what it has done lately: errors, neighbours, links, clocks, memory
RUN_SECONDS = 600.0
FEW_SAMPLES = 20  # of a thread
FEW_SAMPLES_OF_A_CARD = 5
FEW_SECONDS = 3.0  # of samples of a card

# A kernel is resident
IDLE = 0.02  # at or below it nothing is asked of the card (measured 0.0001 with a context)
IN_USE = 0.3
BUSY = 0.9  # above it the card hardly waits for the host (a healthy training reads 0.98 to 1.0)
RESIDENT = 0.95  # a kernel that never ends reads 1.0
ACTIVE = 0.5  # of the multiprocessors; a decoder that fills the card keeps 0.8 of them active

# Confidences: the four levels. A finding below MEDIUM is a suspicion or a note.
LOW, MEDIUM, HIGH, CERTAIN = 0.5, 0.65, 0.8, 0.95
