"""What the tables of docs/downstream.md need beside ``dare-job ctr``: sampled texts, input of real clicks."""
