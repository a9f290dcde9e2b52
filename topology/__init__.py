"""Where actors live: links, activation, partition and subscription services, the front door."""
