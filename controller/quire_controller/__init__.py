"""The control plane: a Raft quorum that holds what the cluster must not forget."""
