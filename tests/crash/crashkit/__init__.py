"""Real processes to kill, real clients that write down what they saw, and a look into the stores from outside."""
