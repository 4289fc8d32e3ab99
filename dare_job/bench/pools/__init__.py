"""What a pool is worth: which old texts it holds, how many, who retrieves from it, and what verifies."""
