"""Knowledge as features: texts to vectors, vectors to clusters, entities to numbers."""
