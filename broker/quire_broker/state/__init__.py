"""What this broker knows of the cluster. Pure.

image   the published metadata, kept up to date from a controller's stream
"""
