"""The journaled data: identifiers, events and their codec."""
