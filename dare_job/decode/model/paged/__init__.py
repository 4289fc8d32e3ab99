"""Forward passes on a GPU: pages of keys and values, split attention, static shapes recorded as graphs."""
