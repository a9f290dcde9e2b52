"""The machines: one pure state machine per kind of actor, and the runtime that hosts them."""
