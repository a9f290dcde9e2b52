"""Topics that are pulled out of another cluster, Apache Pulsar's among them."""
