"""What a controller does with the quorum and the state machine: callbacks on a scheduler, real or simulated."""
