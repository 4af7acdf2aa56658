"""Once-for-all training: sub-models, how they are sampled, searched for and cut out."""
