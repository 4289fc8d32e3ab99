"""Commands on published dates: list them, compare two of them, and remove old ones."""
