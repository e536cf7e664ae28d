collect_ignore = ["peer.py"]  # imports what only the peer's environment has
