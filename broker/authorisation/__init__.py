"""What clients may do: grants, the rules of commands, and their enforcement on connections."""
