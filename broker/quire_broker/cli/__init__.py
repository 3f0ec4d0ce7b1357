"""The `quire` command's verbs that need the broker's code: entry-point plugins of `quire.cli`."""
