"""Real clusters under real faults: traffic, nemesis, history, checks, report."""
