"""Published dates side by side: what each was, what changed between two, and which may go."""
