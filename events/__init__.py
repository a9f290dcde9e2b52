"""What can be written down: identifiers, journaled events and their codec."""
