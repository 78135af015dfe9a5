"""What the machine and the model cost, measured."""
