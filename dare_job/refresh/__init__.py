"""What is written when not everything can be: the value of a row, its cost, and the choice under a budget."""
