"""Trains a private classifier of digits: the script after the port, without Opacus."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adamas.integrations.opacus import BatchMemoryManager, PrivacyEngine

EPOCHS, BATCH_SIZE, EPSILON, DELTA, MAX_GRAD_NORM = 5, 128, 8.0, 1e-5, 1.0

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=BATCH_SIZE, shuffle=True)
test_loader = DataLoader(TensorDataset(x[1437:], y[1437:]), batch_size=BATCH_SIZE)

model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.8)
criterion = nn.CrossEntropyLoss()

privacy_engine = PrivacyEngine(accountant="rdp")
model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=train_loader,
    epochs=EPOCHS,
    target_epsilon=EPSILON,
    target_delta=DELTA,
    max_grad_norm=MAX_GRAD_NORM,
)
print(f"noise multiplier {optimizer.noise_multiplier:.3f}")

for epoch in range(EPOCHS):
    model.train()
    with BatchMemoryManager(
        data_loader=train_loader, max_physical_batch_size=64, optimizer=optimizer
    ) as memory_safe_loader:
        for features, labels in memory_safe_loader:
            optimizer.zero_grad()
            output = model(features)
            loss = criterion(output, labels)
            loss.backward()
            optimizer.step()
    scheduler.step()
    print(f"epoch {epoch + 1}: epsilon so far {privacy_engine.get_epsilon(DELTA):.2f}")

model.eval()
with torch.no_grad():
    correct = sum((model(a).argmax(1) == b).sum().item() for a, b in test_loader)
print(f"accuracy {correct / len(test_loader.dataset):.3f}")
print(f"epsilon {privacy_engine.get_epsilon(DELTA):.2f}")
