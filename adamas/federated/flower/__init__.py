"""Federated training on Flower: a `ServerApp` and a `ClientApp`, in simulation or over the network."""
