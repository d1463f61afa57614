"""What a writer's last snapshot has in the store already, so that the next one need not write it again."""


class Known:
    """Chunks of this rank's last committed snapshot, or of the one that was restored."""
