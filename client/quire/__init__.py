"""Quire: a replicated log and a work queue in one cluster."""
