"""The audit log: a topic of the system with a record of each change by the admin interface."""
