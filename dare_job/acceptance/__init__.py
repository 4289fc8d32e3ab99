"""``dare-job acceptance``: how many drafts a target accepts, beside the most that any exact rule could."""
