"""The parts of a subscription's channel (`velaray.broker.partition.subscription_channel`)."""
