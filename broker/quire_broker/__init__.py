"""The data plane of Quire."""
